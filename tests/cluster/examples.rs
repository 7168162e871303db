//! Every example of the client crate, the very file, against a real cluster.

use crate::data::{patient_url, replicated};

#[path = "../../client/examples/counters.rs"]
mod counters;
#[path = "../../client/examples/error_handling.rs"]
mod error_handling;
#[path = "../../client/examples/policies_per_class.rs"]
mod policies_per_class;
#[path = "../../client/examples/quick_start.rs"]
mod quick_start;
#[path = "../../client/examples/scan_and_resume.rs"]
mod scan_and_resume;
#[path = "../../client/examples/session_token.rs"]
mod session_token;

#[tokio::test]
async fn all_examples_do_what_they_say() {
    let bed = replicated().await;
    let url = patient_url(&bed);
    let said = quick_start::run(&url).await.unwrap();
    assert!(said.starts_with("hello (version "), "{said}");
    assert_eq!(counters::run(&url).await.unwrap(), "10 visits, longest word cancellation");
    let said = scan_and_resume::run(&url).await.unwrap();
    assert_eq!(said, "100 rows read, 100 counted, 100 removed, greatest example/row/099");
    assert_eq!(session_token::run(&url).await.unwrap(), "20 orders seen");
    let said = policies_per_class::run(&url).await.unwrap();
    assert!(said.contains("caller: node") && said.contains("job: node") && said.ends_with("1 copies"), "{said}");
    let said = error_handling::run(&url).await.unwrap();
    assert!(said.contains("over-limit: the call is wrong") && said.ends_with("applied once"), "{said}");
}
