//! Frames: cut anywhere, broken anywhere, never more than what was received.

use super::*;
use crate::ids::RequestId;
use crate::limits::VALUE_BYTES_MAX;
use crate::request::Ping;

fn ping(request: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(FrameKind::Ping, &Ping { request: RequestId(request) }, payload, &mut out).unwrap();
    out
}

fn fed(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
    let mut decoder = FrameDecoder::default();
    decoder.feed(bytes);
    decoder.next_frame()
}

#[test]
fn frames_come_out_whole_wherever_the_stream_is_cut() {
    let stream = [ping(1, b""), ping(2, b"value"), ping(1 << 40, &[0; 300])].concat();
    for cut in 0..=stream.len() {
        let mut decoder = FrameDecoder::default();
        let mut frames = Vec::new();
        for part in [&stream[..cut], &stream[cut..]] {
            decoder.feed(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                frames.push(frame);
            }
        }
        let requests: Vec<u64> = frames.iter().map(|frame| frame.message::<Ping>().unwrap().request.0).collect();
        assert_eq!(requests, [1, 2, 1 << 40], "cut at {cut}");
        assert_eq!(frames[1].payload, b"value"[..]);
        assert_eq!(decoder.pending_bytes(), 0);
    }
}

#[test]
fn a_frame_cut_at_any_byte_waits_for_the_rest() {
    let whole = ping(7, b"value");
    for cut in 0..whole.len() {
        assert_eq!(fed(&whole[..cut]), Ok(None), "cut at {cut}");
    }
}

#[test]
fn lengths_over_the_bound_or_below_the_prefix_end_the_stream() {
    for length in [0u32, 3, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut bytes = ping(1, b"");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(fed(&bytes), Err(FrameError::Length(length as usize)));
    }
}

#[test]
fn a_header_beyond_its_frame_or_bound_ends_the_stream() {
    let mut bytes = ping(1, b"");
    let length = bytes.len() - 4;
    bytes[6..8].copy_from_slice(&(length as u16 - 3).to_le_bytes());
    assert_eq!(fed(&bytes), Err(FrameError::HeaderLength(length - 3, length)));
    let over = HEADER_BYTES_MAX + 1;
    bytes[..4].copy_from_slice(&(over as u32 + 4).to_le_bytes());
    bytes[6..8].copy_from_slice(&(over as u16).to_le_bytes());
    assert_eq!(fed(&bytes), Err(FrameError::HeaderLength(over, over + 4)));
}

#[test]
fn unknown_kinds_and_a_set_reserved_byte_end_the_stream() {
    for number in 0..=u8::MAX {
        let mut bytes = ping(1, b"");
        bytes[4] = number;
        assert_eq!(fed(&bytes).is_ok(), FrameKind::from_number(number).is_some(), "kind {number}");
    }
    let mut bytes = ping(1, b"");
    bytes[5] = 1;
    assert_eq!(fed(&bytes), Err(FrameError::Kind(FrameKind::Ping as u8)));
}

#[test]
fn an_error_stays_an_error() {
    let mut decoder = FrameDecoder::default();
    decoder.feed(&[0; 8]);
    assert!(decoder.next_frame().is_err());
    decoder.feed(&ping(1, b""));
    assert!(decoder.next_frame().is_err());
}

#[test]
fn a_claimed_length_holds_no_memory() {
    let mut decoder = FrameDecoder::default();
    let mut bytes = ping(1, b"");
    bytes[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    decoder.feed(&bytes);
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.buffer.capacity() < 1024, "{}", decoder.buffer.capacity());
}

#[test]
fn the_longest_value_fits_and_one_frame_over_the_bound_does_not() {
    let longest = vec![0; VALUE_BYTES_MAX];
    let frame = fed(&ping(1, &longest)).unwrap().unwrap();
    assert_eq!(frame.payload.len(), VALUE_BYTES_MAX);

    let mut out = vec![9];
    let over = vec![0; FRAME_BYTES_MAX];
    let error = encode(FrameKind::Ping, &Ping { request: RequestId(1) }, &over, &mut out).unwrap_err();
    assert!(matches!(error, FrameError::Length(_)));
    assert_eq!(out, [9], "what was there before stays");
}

#[test]
fn the_request_of_a_frame_is_known_even_if_the_rest_of_its_header_is_garbage() {
    let mut header = Vec::new();
    crate::codec::encode_into(&RequestId(77_777), &mut header).unwrap();
    header.extend_from_slice(&[0xff; 40]);
    let frame = Frame { kind: FrameKind::Read, header: header.into(), payload: Bytes::new() };
    assert!(frame.message::<crate::request::ReadRequest>().is_err());
    assert_eq!(frame.request(), Some(RequestId(77_777)));
    assert_eq!(Frame { kind: FrameKind::Withdraw, ..frame.clone() }.request(), None);
    assert_eq!(Frame { header: Bytes::new(), ..frame }.request(), None);
}
