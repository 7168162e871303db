//! The codec believes nothing: claimed lengths allocate nothing, and what is left over is an error.

use super::*;
use crate::request::Withdraw;
use bytes::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Remembers the largest allocation of each thread.
struct Watching;

// SAFETY: hands every call to the system allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: allocated by `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

fn largest_allocation(deed: impl FnOnce()) -> usize {
    LARGEST.set(0);
    deed();
    LARGEST.get()
}

/// A length of 2^`bits` as the format writes it (marker 253, then 8 bytes).
fn claim(bits: u32) -> Vec<u8> {
    let mut bytes = vec![253];
    bytes.extend_from_slice(&(1u64 << bits).to_le_bytes());
    bytes
}

#[test]
fn a_claimed_length_allocates_nothing() {
    for bits in [13, 20, 25, 30, 40, 62] {
        let lie = claim(bits);
        let largest = largest_allocation(|| {
            assert!(decode::<Withdraw>(&lie).is_err());
            assert!(decode::<Bytes>(&lie).is_err());
            assert!(decode::<String>(&lie).is_err());
            assert!(decode::<Vec<u64>>(&lie).is_err());
            assert!(decode_large::<Bytes>(&lie).is_err());
            assert!(decode_large::<Vec<(u64, Bytes)>>(&lie).is_err());
            assert!(decode_large::<std::collections::BTreeMap<u64, String>>(&lie).is_err());
        });
        assert!(largest <= 512, "2^{bits} claimed, {largest} bytes allocated at once");
    }
}

#[test]
fn what_was_received_may_be_allocated() {
    let value = Bytes::from(vec![7; 1 << 20]);
    let bytes = encode_large(&value).unwrap();
    let largest = largest_allocation(|| assert_eq!(decode_large::<Bytes>(&bytes), Ok(value.clone())));
    assert!((1 << 20..3 << 20).contains(&largest), "{largest}");
}

#[test]
fn bytes_after_the_message_are_an_error() {
    let mut bytes = encode(&7u64).unwrap();
    bytes.extend_from_slice(&[0, 0]);
    assert_eq!(decode::<u64>(&bytes), Err(CodecError::Trailing(2)));
}

#[test]
fn a_header_over_its_bound_is_not_written() {
    let mut out = vec![1, 2, 3];
    let long = "x".repeat(HEADER_BYTES_MAX);
    assert!(matches!(encode_into(&long, &mut out), Err(CodecError::Encode(_))));
    assert_eq!(out, [1, 2, 3]);
    assert!(encode(&long).is_err());
    assert!(encode_large(&long).is_ok());
}

#[test]
fn a_header_over_its_bound_is_not_read() {
    let bytes = encode_large(&"x".repeat(HEADER_BYTES_MAX + 1)).unwrap();
    assert!(decode::<String>(&bytes).is_err());
}

#[test]
fn text_that_is_no_utf8_is_an_error() {
    assert!(decode::<String>(&[2, 0xff, 0xfe]).is_err());
}
