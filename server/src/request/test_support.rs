//! Fakes behind the doors, for tests of the request path.

use bytes::Bytes;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, RequestId};
use tiedkv_protocol::response::{Failure, ReadReply, Service};

/// Some answer to a request.
pub fn reply(request: u64) -> ReadReply {
    let service = Service {
        node: NodeId(1),
        started: false,
        queue_wait_us: 0,
        service_time_us: 0,
        queue_depth: 0,
        flags: 0,
        unhealthy_pairs: 0,
    };
    ReadReply { request: RequestId(request), service, outcome: Err(Failure::new(ErrorCode::Busy, "full")) }
}

#[allow(dead_code)]
fn unused(_: Bytes) {}
