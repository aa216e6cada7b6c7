"""A receipt says field by field what was asked and seen, and turns into JSON as it is."""

from __future__ import annotations

import json

from kis.receipt import Entry, Receipt
from kis.vocabulary import Tier

ENTRIES = (
    Entry("network", "off", "network namespace", ("lo",), "observed", False, True),
    Entry("keyring", None, "keyctl", 7, "self_reported", True, None),
)


def test_receipt_finds_entries() -> None:
    receipt = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", ENTRIES)
    assert receipt.get("network") is ENTRIES[0]
    assert receipt.get("nothing") is None


def test_receipt_holds_unless_something_differs() -> None:
    receipt = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", ENTRIES)
    assert receipt.holds
    bad = Entry("uid", "1000", "user namespace", "0", "observed", False, False)
    assert not receipt.replace(entries=(*ENTRIES, bad)).holds


def test_receipt_is_json() -> None:
    receipt = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", ENTRIES)
    shown = json.loads(json.dumps(receipt.to_dict()))
    assert shown["tier"] == "container"
    assert shown["entries"][0] == {
        "field": "network",
        "asked": "off",
        "mechanism": "network namespace",
        "observed": ["lo"],
        "source": "observed",
        "after_payload": False,
        "holds": True,
    }
