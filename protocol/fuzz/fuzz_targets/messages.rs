//! Any bytes as the header of any message: what is understood is written and understood again alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use tiedkv_protocol::atomic::{Atomic, WriteDetail};
use bytes::Bytes;
use tiedkv_protocol::codec;
use tiedkv_protocol::multi_get::Answers;
use tiedkv_protocol::{hello, request, response};

fn again<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) {
    if let Ok(message) = codec::decode::<T>(bytes) {
        // By bytes, not by value: a disturbance may hold a float that differs from itself.
        let written = codec::encode(&message).expect("what fits when read fits when written");
        let read = codec::decode::<T>(&written).expect("what was written is read");
        assert_eq!(codec::encode(&read).expect("as before"), written, "{message:?}");
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    match kind % 15 {
        0 => again::<hello::Hello>(bytes),
        1 => again::<hello::Welcome>(bytes),
        2 => again::<hello::Notice>(bytes),
        3 => again::<request::ReadRequest>(bytes),
        4 => again::<request::Withdraw>(bytes),
        5 => again::<request::WriteRequest>(bytes),
        6 => again::<request::Ping>(bytes),
        7 => again::<request::AdminRequest>(bytes),
        8 => again::<response::ReadReply>(bytes),
        9 => again::<response::WriteReply>(bytes),
        10 => again::<response::Pong>(bytes),
        11 => again::<response::AdminReply>(bytes),
        // What travels in payloads.
        12 => {
            let mut answers = Answers::new(Bytes::copy_from_slice(bytes));
            while let Ok(Some(_)) = answers.next_answer() {}
        }
        13 => {
            if let Ok(atomic) = Atomic::decode(bytes) {
                let written = atomic.encode().expect("what fits when read fits when written");
                assert_eq!(Atomic::decode(&written).expect("what was written is read"), atomic);
            }
        }
        _ => {
            if let Ok(Some(detail)) = WriteDetail::decode(bytes) {
                let written = detail.encode().expect("what fits when read fits when written");
                assert_eq!(WriteDetail::decode(&written).expect("what was written is read"), Some(detail));
            }
        }
    }
});
