//! Any bytes as a datagram of the cancel channel.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tiedkv_protocol::peer::PeerDatagram;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(datagram) = PeerDatagram::decode(bytes) {
        let written = datagram.encode().expect("what was read can be written");
        assert_eq!(PeerDatagram::decode(&written).expect("what was written is read"), datagram);
    }
});
