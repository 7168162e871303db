//! Every bound that both ends of the wire must agree on. Reaching one is a typed answer, never a panic.

use std::time::Duration;

/// Version of the wire format spoken here; `hello` carries the lowest and highest a side speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// Longest key in bytes; a key has at least one byte.
pub const KEY_BYTES_MAX: usize = 4 * 1024;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Values above this many bytes get a QUIC stream of their own, so that they block no other frame.
pub const INLINE_VALUE_BYTES_MAX: usize = 64 * 1024;
/// Most keys of one call that travel in one copy.
pub const KEYS_TOGETHER_MAX: usize = 64;
/// Most bytes of the keys that travel in one copy.
pub const KEYS_TOGETHER_BYTES_MAX: usize = 8 * 1024;
/// Most rows of one page of a scan.
pub const SCAN_PAGE_ROWS_MAX: usize = 64 * 1024;
/// Most bytes of rows of one page of a scan; one larger row travels alone.
pub const SCAN_PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Most rows that one chunk of a page looks at before it queues again.
pub const SCAN_CHUNK_ROWS_MAX: usize = 256;
/// Bytes of keys and values after which a chunk of a page queues again.
pub const SCAN_CHUNK_BYTES_MAX: usize = 64 * 1024;
/// Most chunks of one page: one that finds little but expired rows ends with what it has.
pub const SCAN_PAGE_CHUNKS_MAX: u32 = 1024;
/// Shortest time to live, milliseconds of log time.
pub const TTL_MS_MIN: u64 = 1;
/// Longest time to live, milliseconds of log time: ten years.
pub const TTL_MS_MAX: u64 = 10 * 365 * 86_400_000;
/// Longest frame header (bincode part) in bytes.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Most operations of one atomic write, and most conditions.
pub const BATCH_OPERATIONS_MAX: usize = 1_000;
/// Most bytes of all keys and values of one atomic write, those of its conditions counted; of its values alone if it is
/// one operation under at most one condition.
pub const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest frame on the wire after its length field: a value or a batch, with the names and lengths of its parts.
pub const FRAME_BYTES_MAX: usize = VALUE_BYTES_MAX + 64 * 1024 + HEADER_BYTES_MAX + 64;
/// Most withdraws in one frame.
pub const WITHDRAWS_MAX: usize = 256;

/// Most copies of one tie (numbers 0, 1, 2), hence most members named in it.
pub const TIE_COPIES_MAX: usize = 3;
/// Most copies of one read that may be out at once (answered ones and those on lost links not counted).
pub const READ_COPIES_OUT_MAX: usize = 5;

/// Longest time left that a node accepts; more is cut to this.
pub const TIME_LEFT_MAX: Duration = Duration::from_secs(60);
/// Longest `stale` bound.
pub const STALE_BOUND_MAX: Duration = Duration::from_secs(3600);

/// Lower bound of the tie delay (default of the setting).
pub const TIE_DELAY_FLOOR: Duration = Duration::from_micros(50);
/// Upper bound of the tie delay (default of the setting), and the delay while the estimate is unknown.
pub const TIE_DELAY_CAP: Duration = Duration::from_millis(10);

/// Most bytes of one datagram on the cancel channel; fits the smallest QUIC path.
pub const PEER_DATAGRAM_BYTES_MAX: usize = 1100;
/// Most cancels packed into one datagram.
pub const CANCELS_PER_DATAGRAM_MAX: usize = 24;

/// Longest zone name, host name, address and client name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of all zones and addresses of a cluster's members together: so many fit the header of `Welcome`, which
/// names them all.
pub const MEMBERS_BYTES_MAX: usize = 12 * 1024;
/// Most members of one cluster.
pub const MEMBERS_MAX: usize = 64;
