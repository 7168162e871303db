//! Priorities of threads. Real-time for the thread of the cancel channel: with both CPUs busy a cancel then waits
//! microseconds instead of a scheduler tick. Short slices for the threads on the path of a read. Asked for, never
//! required.

use std::io;
use std::time::Duration;

/// Low among real-time priorities: above all normal threads, below the system's own.
const PRIORITY: i32 = 10;

/// Makes the calling thread SCHED_FIFO; threads it starts are normal again (`SCHED_RESET_ON_FORK`, sched(7)).
///
/// # Errors
/// When the system does not allow it (it needs CAP_SYS_NICE or RLIMIT_RTPRIO).
pub fn raise_this_thread() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is the calling thread; the pointer is valid for the call, which only reads it.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Slice of a thread that does little at a time but should do it at once: far below the scheduler's own of some
/// milliseconds, far above what one wake-up takes.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// Asks the scheduler for a short slice for the calling thread: under EEVDF (Linux 6.12, `sched_setattr(2)`) a thread
/// that wakes with a shorter slice comes before those that run for longer, at the same share of the processor and
/// without a privilege. Threads that it starts inherit it.
///
/// # Errors
/// When the system does not know it; nothing is lost then.
pub fn shorten_slice() -> io::Result<()> {
    /// `struct sched_attr`, version 1 (sched_setattr(2)).
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
        util_min: u32,
        util_max: u32,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime_ns: SHORT_SLICE.as_nanos() as u64,
        deadline_ns: 0,
        period_ns: 0,
        util_min: 0,
        util_max: 0,
    };
    // SAFETY: 0 is the calling thread; the pointer is valid for the call, which only reads as much as `size` says.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
