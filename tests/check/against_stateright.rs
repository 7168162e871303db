//! The linearizability checker agrees with stateright's tester on small random histories, good and bad.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use tiedkv_tests::check::history::{Asked, Call, Came, Freshness, Value};
use tiedkv_tests::check::linear::is_linearizable;

/// A register that can be absent, as stateright sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Register(Option<Value>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asks(Asked);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Says(Came);

impl SequentialSpec for Register {
    type Op = Asks;
    type Ret = Says;

    fn invoke(&mut self, asks: &Asks) -> Says {
        Says(match asks.0 {
            Asked::Read => Came::Found(self.0),
            Asked::Put(value) => {
                self.0 = Some(value);
                Came::Done
            }
            Asked::Delete => {
                self.0 = None;
                Came::Done
            }
            Asked::CompareAndSet(expect, value) if expect == self.0 => {
                self.0 = Some(value);
                Came::Done
            }
            Asked::CompareAndSet(..) => Came::Unmet(self.0),
        })
    }
}

/// A history of few threads, each with one call out at a time; answers come from a register that mostly applies a
/// call at some moment between its begin and its end, and sometimes says anything.
fn history(random: &mut StdRng) -> Vec<Call> {
    let mut register = Register::default();
    let mut out: [Option<(Asked, u64, Option<Came>)>; 3] = [None; 3];
    let (mut calls, mut value) = (Vec::new(), 0);
    for now in 1..random.random_range(8..30_u64) {
        let session = random.random_range(0..3);
        match out[session] {
            None => {
                value += 1;
                let some = |random: &mut StdRng| match random.random_range(0..=value) {
                    0 => None,
                    value => Some(value),
                };
                let asked = match random.random_range(0..6) {
                    0 | 1 => Asked::Put(value),
                    2 => Asked::Delete,
                    3 => Asked::CompareAndSet(some(random), value),
                    _ => Asked::Read,
                };
                out[session] = Some((asked, now, None));
            }
            Some((asked, began, None)) => {
                out[session] = Some((asked, began, Some(register.invoke(&Asks(asked)).0)))
            }
            Some((asked, began, Some(said))) => {
                out[session] = None;
                let wrong = random.random_bool(0.06);
                let came = match (asked, said) {
                    (Asked::Read, Came::Found(_)) if wrong => Came::Found(Some(random.random_range(1..=value))),
                    (Asked::CompareAndSet(..), Came::Done) if wrong => Came::Unmet(None),
                    (_, said) => said,
                };
                calls.push(call(session, asked, (began, now), came));
            }
        }
    }
    for (session, left) in out.into_iter().enumerate() {
        if let Some((asked, began, _)) = left.filter(|(asked, ..)| *asked != Asked::Read) {
            calls.push(call(session, asked, (began, began), Came::Unknown));
        }
    }
    calls
}

fn call(session: usize, asked: Asked, (began, ended): (u64, u64), came: Came) -> Call {
    let (session, freshness) = (session as u32, Freshness::Linearizable);
    Call { session, key: 0, asked, began, ended, came, freshness, version: 0, position: 0 }
}

fn stateright_says(calls: &[Call]) -> bool {
    let mut events: Vec<(u64, bool, &Call)> = Vec::new();
    for call in calls {
        events.push((call.began, false, call));
        if call.came != Came::Unknown {
            events.push((call.ended, true, call));
        }
    }
    events.sort_by_key(|(at, end, _)| (*at, *end));
    let mut tester = LinearizabilityTester::new(Register::default());
    for (_, end, call) in events {
        let fed = match end {
            false => tester.on_invoke(call.session, Asks(call.asked)).map(drop),
            true => tester.on_return(call.session, Says(call.came)).map(drop),
        };
        fed.unwrap();
    }
    tester.is_consistent()
}

#[test]
fn the_checker_and_stateright_agree_on_random_histories() {
    let mut random = StdRng::seed_from_u64(7);
    let mut counted = [0; 2];
    for round in 0..4_000 {
        let calls = history(&mut random);
        let good = is_linearizable(&calls);
        assert_eq!(good, stateright_says(&calls), "round {round}: {calls:#?}");
        counted[usize::from(good)] += 1;
    }
    assert!(counted.iter().all(|count| *count > 300), "both kinds, often: {counted:?}");
}
