//! Real-time priority for the thread of the cancel channel: with both CPUs busy a cancel then waits microseconds
//! instead of a scheduler tick. Asked for, never required.

use std::io;

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
