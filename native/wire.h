/* The numbers of docs/wire.md. Whoever changes one changes that page and the Python side with it. */
#ifndef KIS_WIRE_H
#define KIS_WIRE_H

#define PLAN_MAGIC "KISPLAN1"
#define PLAN_BYTES_MAX (8u << 20)
#define PLAN_RECORDS_MAX 4096u
#define NONE 0xffffffffu

enum mode_bits {
    MODE_PRIVILEGED = 1,
    MODE_LOOPBACK = 2,
    MODE_NET_HOST = 4,
    MODE_ROOT_READONLY = 8,
    MODE_SUPERVISE = 16,
    MODE_ALL = 31,
};

enum record_type {
    REC_MODE = 1,
    REC_UID_MAP,
    REC_GID_MAP,
    REC_AGENT,
    REC_HOSTNAME,
    REC_SPACE,
    REC_IDMAP,
    REC_ROOT,
    REC_DIR,
    REC_FILE,
    REC_LINK,
    REC_BIND,
    REC_SPACE_BIND,
    REC_PROC,
    REC_DEVPTS,
    REC_MASK,
    REC_CAPS,
    REC_RLIMIT,
    REC_FILTER,
    REC_SYSCTL,
    REC_OVERLAY,
};

enum bind_attributes { BIND_RDONLY = 1, BIND_NOSUID = 2, BIND_NODEV = 4, BIND_NOEXEC = 8, BIND_ALL = 15 };
enum root_kind { ROOT_SKELETON = 0, ROOT_OVERLAY = 1 };
enum filter_number { FILTER_PAYLOAD = 1 };

#define FRAME_HEADER_BYTES 16u
#define FRAME_PAYLOAD_MAX 65536u
#define FRAME_GENERATION 1u
#define COMMAND_BYTES_MAX (8u << 20)
#define FLAG_MORE 1u
#define FLAG_LAST 2u

enum frame_type {
    FRAME_EXEC = 0x01,
    FRAME_SIGNAL = 0x04,
    FRAME_SHUTDOWN = 0x05,
    FRAME_BORN = 0x80,
    FRAME_HELLO = 0x81,
    FRAME_READY = 0x82,
    FRAME_FAILED = 0x83,
    FRAME_EXITED = 0x84,
    FRAME_FAULT = 0x85,
};

enum command_flags { COMMAND_NEW_SESSION = 1, COMMAND_REPORT_NAMES = 2, COMMAND_ALL = 3 };
enum signal_scope { SCOPE_PROCESS = 0, SCOPE_GROUP = 1, SCOPE_SANDBOX = 2 };

enum failed_stage {
    STAGE_CWD = 1,
    STAGE_EXEC,
    STAGE_IDS,
    STAGE_LIMITS,
    STAGE_DESCRIPTORS,
    STAGE_MALFORMED,
};

enum failed_kind {
    KIND_OTHER = 0,
    KIND_NOT_FOUND,
    KIND_NOT_EXECUTABLE,
    KIND_IS_DIRECTORY,
    KIND_INTERPRETER_MISSING,
    KIND_BAD_FORMAT,
};

enum fault_step {
    STEP_PLAN = 1,
    STEP_DESCRIPTORS,
    STEP_NAMESPACES,
    STEP_IDMAP,
    STEP_SOURCE,
    STEP_ROOT,
    STEP_MOUNT,
    STEP_TARGET,
    STEP_PROC,
    STEP_NETWORK,
    STEP_IDENTITY,
    STEP_CAPABILITIES,
    STEP_SECCOMP,
    STEP_AGENT,
    STEP_KEYRING,
    STEP_LIMITS,
    STEP_PROTOCOL,
};

#endif
