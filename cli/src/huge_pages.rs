//! The allocator of the program: the system's, which is told to back large buffers with huge pages.
//!
//! A value of 8 MiB is copied several times on its way through a node, each time into a buffer fresh from the kernel.
//! In pages of 4 KiB that is two thousand faults per copy, more than the copying itself. The kernel may have to make room
//! for a huge page first, which only the thread that uses the buffer waits for. Smaller requests go to the system's
//! allocator as they are; memory is given back as before.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;

/// A huge page of x86-64 and most of ARM64; smaller buffers cannot have one.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bounds of what the kernel is told about. Larger pages than this: the advice is refused, and nothing else happens.
const PAGE_BYTES: usize = 4096;

/// See the head of this room.
pub struct HugePages;

// SAFETY: every request goes to `System` with the layout that it came with, and what `System` gives is handed on as it
// is, so its contract is kept by it. `advise` changes no content and no validity of memory; see there.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout, since all of ours do.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as `dealloc`; the caller keeps the contract for `new_size`.
        advised(unsafe { System.realloc(pointer, layout, new_size) }, new_size)
    }
}

/// Tells the kernel to back an allocation of `bytes` at `pointer` with huge pages, if it is large.
fn advised(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if bytes >= HUGE_PAGE_BYTES && !pointer.is_null() {
        advise(pointer, bytes);
    }
    pointer
}

#[cold]
fn advise(pointer: *mut u8, bytes: usize) {
    // Whole pages: so a buffer that has a mapping of its own keeps it in one piece.
    let from = pointer.addr() / PAGE_BYTES * PAGE_BYTES;
    let length = (pointer.addr() + bytes).next_multiple_of(PAGE_BYTES) - from;
    // SAFETY: each page of the range holds a byte of an allocation that is not free, so it is mapped; this advice only
    // says how the kernel is to back the pages and leaves what is in them, whoever's it is (madvise(2)). That it cannot
    // be followed is no error for anybody.
    unsafe { libc::madvise(pointer.with_addr(from).cast::<c_void>(), length, libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_hold_what_is_written_whatever_their_size() {
        for bytes in [1, PAGE_BYTES, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 12_345] {
            let layout = Layout::from_size_align(bytes, 8).unwrap();
            // SAFETY: the layout has a size, each pointer is used within its size and given back once with its layout.
            unsafe {
                let pointer = HugePages.alloc_zeroed(layout);
                assert!(!pointer.is_null());
                assert_eq!((*pointer, *pointer.add(bytes - 1)), (0, 0));
                pointer.add(bytes - 1).write(7);
                let longer = HugePages.realloc(pointer, layout, bytes + HUGE_PAGE_BYTES);
                assert_eq!(*longer.add(bytes - 1), 7);
                longer.add(bytes + HUGE_PAGE_BYTES - 1).write(8);
                HugePages.dealloc(longer, Layout::from_size_align(bytes + HUGE_PAGE_BYTES, 8).unwrap());
            }
        }
    }

    #[test]
    fn the_kernel_is_told_of_large_buffers() {
        let buffer = vec![1_u8; 4 * HUGE_PAGE_BYTES];
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let from = buffer.as_ptr().addr();
        let mut inside = false;
        let flags = maps.lines().find_map(|line| {
            if let Some((range, _)) = line.split_once(' ')
                && let Some((low, high)) = range.split_once('-')
                && let (Ok(low), Ok(high)) = (usize::from_str_radix(low, 16), usize::from_str_radix(high, 16))
            {
                inside = (low..high).contains(&(from + HUGE_PAGE_BYTES));
            }
            line.strip_prefix("VmFlags:").filter(|_| inside)
        });
        // `hg`: huge pages are advised. A kernel without them shows no such flag and refuses the advice.
        let without = !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert!(without || flags.is_some_and(|flags| flags.contains(" hg")), "{flags:?}");
    }
}
