//! Priority and place of the calling thread, for probes that must not wait behind what they watch. Asked for, never
//! required.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;

/// Low among real-time priorities, above all threads of clients and servers.
const PRIORITY: i32 = 20;

/// Makes the calling thread SCHED_FIFO (sched(7)).
///
/// # Errors
/// When the system does not allow it.
pub fn raise_this_thread() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is the calling thread; the pointer is valid for the call, which only reads it.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps the calling thread on one processor, if there is such a one and the system allows it.
pub fn stay_on(processor: usize) {
    if processor < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}
