//! How log ids, votes and payloads are written by raft-log: big-endian numbers, and the payload bytes of
//! [`types`](crate::raft::types). Every record carries raft-log's CRC-32.

use crate::raft::log_store::payload_bytes;
use crate::raft::types::{LogId, Payload, Vote, decode_payload, encode_payload};
use openraft::impls::leader_id_adv::LeaderId;
use raft_log::codeq::{Decode, Encode};
use std::io;

/// A log id in the log: term, proposer, index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedId(pub LogId);

/// A vote in the log: term, node, committed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd)]
pub struct LoggedVote(pub Vote);

/// A payload in the log and in its cache; cloning shares the bytes of key and value.
#[derive(Clone, Debug)]
pub struct LoggedPayload(pub Payload);

impl LoggedPayload {
    /// Bytes held, for bounds.
    pub fn bytes(&self) -> usize {
        payload_bytes(&self.0)
    }
}

impl Encode for LoggedId {
    fn encode<W: io::Write>(&self, mut to: W) -> io::Result<usize> {
        let leader = self.0.leader_id;
        Ok(leader.term.encode(&mut to)? + leader.node_id.encode(&mut to)? + self.0.index.encode(&mut to)?)
    }
}

impl Decode for LoggedId {
    fn decode<R: io::Read>(mut from: R) -> io::Result<Self> {
        let leader_id = LeaderId { term: u64::decode(&mut from)?, node_id: u64::decode(&mut from)? };
        Ok(Self(LogId { leader_id, index: u64::decode(&mut from)? }))
    }
}

impl Encode for LoggedVote {
    fn encode<W: io::Write>(&self, mut to: W) -> io::Result<usize> {
        let leader = self.0.leader_id;
        let committed = u8::from(self.0.committed);
        Ok(leader.term.encode(&mut to)? + leader.node_id.encode(&mut to)? + committed.encode(&mut to)?)
    }
}

impl Decode for LoggedVote {
    fn decode<R: io::Read>(mut from: R) -> io::Result<Self> {
        let leader_id = LeaderId { term: u64::decode(&mut from)?, node_id: u64::decode(&mut from)? };
        let committed = match u8::decode(&mut from)? {
            0 => false,
            1 => true,
            other => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{other} is no flag of a vote")));
            }
        };
        Ok(Self(Vote { leader_id, committed }))
    }
}

impl Encode for LoggedPayload {
    fn encode<W: io::Write>(&self, to: W) -> io::Result<usize> {
        encode_payload(&self.0)?.encode(to)
    }
}

impl Decode for LoggedPayload {
    fn decode<R: io::Read>(from: R) -> io::Result<Self> {
        decode_payload(&Vec::<u8>::decode(from)?).map(Self)
    }
}
