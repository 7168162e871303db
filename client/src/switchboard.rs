//! Who says how far policies may act: the environment, a watched file, the program and the operator's ceiling. The
//! lowest counts; every read and every extra copy looks here, so that a change holds for calls under way.
//!
//! The file is read by [`crate::switch_file`], the ceiling comes from nodes. What follows for a read is
//! [`crate::control`]'s.

use crate::config::ConfigError;
use crate::control::{BadSwitch, Switch};
use crate::operation::Operation;
use crate::switch_file::not_a_mode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use tiedkv_protocol::hello::{Ceiling, Mode};

/// The variable that switches a whole process: `off`, `observe` or `on`, read when a client connects.
pub const VARIABLE: &str = "TIEDKV_TIED";

/// One switch per operation.
pub(crate) type Switches = [Switch; Operation::ALL.len()];

const ALL_ON: Switches = [Switch::ON; Operation::ALL.len()];

/// See the head of this room.
#[derive(Debug, Default)]
pub(crate) struct Switchboard {
    /// Grows with each change.
    version: AtomicU64,
    said: Mutex<Said>,
}

/// What each source said last.
#[derive(Clone, Copy, Debug)]
struct Said {
    environment: Switches,
    file: Switches,
    program: Switches,
    ceiling: Ceiling,
}

impl Default for Said {
    fn default() -> Self {
        Self { environment: ALL_ON, file: ALL_ON, program: ALL_ON, ceiling: Ceiling::default() }
    }
}

impl Switchboard {
    /// Changes with every change; a cheap look for those who keep a copy.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// The lowest of all switches, and the newest ceiling.
    pub(crate) fn in_force(&self) -> (Switches, Ceiling) {
        let said = *self.said.lock();
        let lowest = |operation: Operation| {
            let at = operation as usize;
            said.environment[at].lower(said.file[at]).lower(said.program[at])
        };
        (Operation::ALL.map(lowest), said.ceiling)
    }

    /// A node told its ceiling.
    pub(crate) fn learn_ceiling(&self, ceiling: Ceiling) {
        self.change(|said| {
            if ceiling.version > said.ceiling.version {
                said.ceiling = ceiling;
            }
        });
    }

    pub(crate) fn set_file(&self, switches: Switches) {
        self.change(|said| said.file = switches);
    }

    pub(crate) fn set_environment(&self, switch: Switch) {
        self.change(|said| said.environment = [switch; Operation::ALL.len()]);
    }

    fn change(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock());
        self.version.fetch_add(1, Release);
    }
}

/// What `TIEDKV_TIED` says; on if it is not set.
///
/// # Errors
/// When it is neither `off`, `observe` nor `on`.
pub fn from_environment(value: Option<&str>) -> Result<Switch, ConfigError> {
    match value {
        None | Some("on") => Ok(Switch::ON),
        Some("off") => Ok(Switch::OFF),
        Some("observe") => Ok(Switch::OBSERVE),
        Some(other) => Err(ConfigError::Value { name: VARIABLE, reason: not_a_mode(other) }),
    }
}

/// The program's own switch of a client, at run time. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PolicyControl {
    board: Arc<Switchboard>,
}

impl PolicyControl {
    pub(crate) fn new(board: Arc<Switchboard>) -> Self {
        Self { board }
    }

    /// Sets the program's switch for every operation; holds from the next decision on, for calls under way too.
    ///
    /// # Errors
    /// When a value can have no effect.
    pub fn set(&self, switch: Switch) -> Result<(), BadSwitch> {
        let switch = switch.check()?;
        self.board.change(|said| said.program = [switch; Operation::ALL.len()]);
        Ok(())
    }

    /// [`PolicyControl::set`] for one operation.
    ///
    /// # Errors
    /// As [`PolicyControl::set`].
    pub fn set_for(&self, operation: Operation, switch: Switch) -> Result<(), BadSwitch> {
        let switch = switch.check()?;
        self.board.change(|said| said.program[operation as usize] = switch);
        Ok(())
    }

    /// What holds for an operation: the lowest of environment, file, program and ceiling.
    pub fn in_force(&self, operation: Operation) -> Switch {
        let (switches, ceiling) = self.board.in_force();
        let share = f64::from(ceiling.share_ppm) / 1e6;
        let by_ceiling = Switch { mode: ceiling.mode, share, sample: 0.0 };
        let lowest = switches[operation as usize].lower(by_ceiling);
        if lowest.mode == Mode::On { lowest } else { Switch { share: 1.0, ..lowest } }
    }

    /// The operator's ceiling as last told by a node.
    pub fn ceiling(&self) -> Ceiling {
        self.board.in_force().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_source_counts_and_each_can_be_taken_back() {
        let board = Arc::new(Switchboard::default());
        let control = PolicyControl::new(board.clone());
        let before = board.version();
        control.set_for(Operation::Scan, Switch::OBSERVE).unwrap();
        assert_ne!(board.version(), before);
        assert_eq!(control.in_force(Operation::Get), Switch::ON);
        assert_eq!(control.in_force(Operation::Scan), Switch::OBSERVE);
        board.set_file([Switch::OFF; 3]);
        assert_eq!(control.in_force(Operation::Scan).mode, Mode::Off);
        board.set_file(ALL_ON);
        board.learn_ceiling(Ceiling { version: 1, share_ppm: 250_000, ..Ceiling::default() });
        assert_eq!(control.in_force(Operation::Get), Switch { share: 0.25, ..Switch::ON });
        assert_eq!(control.in_force(Operation::Scan), Switch::OBSERVE);
        board.learn_ceiling(Ceiling { version: 0, mode: Mode::Off, ..Ceiling::default() });
        assert_eq!(control.ceiling().version, 1, "an older one is no news");
        assert!(control.set(Switch { share: 0.5, ..Switch::OFF }).is_err());
    }

    #[test]
    fn the_variable_has_three_values() {
        assert_eq!(from_environment(None).unwrap(), Switch::ON);
        assert_eq!(from_environment(Some("observe")).unwrap().mode, Mode::Observe);
        let wrong = from_environment(Some("obsrve")).unwrap_err().to_string();
        assert!(wrong.contains("TIEDKV_TIED") && wrong.contains("did you mean `observe`?"), "{wrong}");
    }
}
