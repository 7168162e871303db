//! Any bytes, in pieces of any size, as a stream of frames: the decoder holds no more than it was fed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tiedkv_protocol::frame::FrameDecoder;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let mut decoder = FrameDecoder::default();
    for part in bytes.chunks(usize::from(step) + 1) {
        decoder.feed(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => assert!(frame.header.len() + frame.payload.len() <= bytes.len()),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(decoder.pending_bytes() <= bytes.len());
    }
});
