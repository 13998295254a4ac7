//! What a test may do to the machine, as words of the test port and as lines of text.

use std::str::FromStr;
use std::time::Duration;

use super::CORES;
use crate::levers::Lever;

/// One pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The core. Without one it is whichever is kicked next, or all of them where nobody needs to kick.
    pub core: Option<usize>,
    /// What happens to it.
    pub effect: Effect,
}

/// What a pull does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The next kick goes wrong.
    Kick(Lever),
    /// The core raises its completion interrupt now, though nothing completed.
    SpuriousInterrupt,
    /// The core's IOMMU does not answer that many requests to stall.
    StallTimeouts(u32),
    /// From now on, or no longer, the core completes by the pooling unit's interrupt, whatever it computed.
    PoolingInterrupt(bool),
    /// From now on, or no longer, the core interrupts after the first task of a kick as well. It is not known whether the
    /// hardware does; see [`super`].
    FirstTaskInterrupt(bool),
}

/// Why a pull is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// Another number or name.
    #[error("there is no lever `{0}`; hang, fault, slow, spurious, stall, pooling and first exist")]
    Lever(String),
    /// A core that the machine does not have.
    #[error("there is no core `{0}`; 0, 1, 2 and any exist")]
    Core(String),
    /// No number.
    #[error("`{0}` is not a number below 2^32")]
    Argument(String),
}

/// The number that stands for any core.
const ANY: usize = 0xff;

impl Pull {
    /// A pull by the lever's number: 0 hang, 1 fault, 2 slow, 3 spurious, 4 stall, 5 pooling, 6 first; `core` 255 is any.
    /// `argument`: of hang and fault the task in the kick, of slow microseconds, of stall how many requests, of pooling and
    /// first 0 to end it.
    ///
    /// # Errors
    /// A lever or a core that does not exist.
    pub fn new(lever: u8, core: u8, argument: u32) -> Result<Self, PullError> {
        let core = match usize::from(core) {
            ANY => None,
            core if core < CORES => Some(core),
            core => return Err(PullError::Core(core.to_string())),
        };
        let effect = match lever {
            0 => Effect::Kick(Lever::Hang { task: argument as usize }),
            1 => Effect::Kick(Lever::IommuFault { task: argument as usize }),
            2 => Effect::Kick(Lever::Slow(Duration::from_micros(argument.into()))),
            3 => Effect::SpuriousInterrupt,
            4 => Effect::StallTimeouts(argument),
            5 => Effect::PoolingInterrupt(argument != 0),
            6 => Effect::FirstTaskInterrupt(argument != 0),
            _ => return Err(PullError::Lever(lever.to_string())),
        };
        Ok(Self { core, effect })
    }

    /// A pull as a word of the test port: 7:0 the lever, 15:8 the core, 63:32 the argument.
    ///
    /// # Errors
    /// As [`Pull::new`]; set bits in 31:16.
    pub fn from_word(word: u64) -> Result<Self, PullError> {
        // CAST: the fields are cut out.
        let (lever, core, rest, argument) = (word as u8, (word >> 8) as u8, word >> 16 & 0xffff, (word >> 32) as u32);
        if rest != 0 {
            return Err(PullError::Argument(format!("{rest:#x}0000")));
        }
        Self::new(lever, core, argument)
    }
}

impl FromStr for Pull {
    type Err = PullError;

    /// `NAME CORE [ARGUMENT]`, where CORE may be `any`.
    fn from_str(line: &str) -> Result<Self, PullError> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let names = ["hang", "fault", "slow", "spurious", "stall", "pooling", "first"];
        let lever = names.iter().position(|known| *known == name).ok_or_else(|| PullError::Lever(name.into()))?;
        let core = words.next().unwrap_or_default();
        let core = match core {
            "any" => ANY as u8, // CAST: below 256.
            core => core.parse().map_err(|_| PullError::Core(core.into()))?,
        };
        let argument = words.next().unwrap_or("0");
        let argument = argument.parse().map_err(|_| PullError::Argument(argument.into()))?;
        match words.next() {
            // CAST: seven names.
            None => Self::new(lever as u8, core, argument),
            Some(more) => Err(PullError::Argument(more.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_and_a_line_say_the_same() {
        let pull = Pull { core: Some(2), effect: Effect::Kick(Lever::Slow(Duration::from_millis(300))) };
        assert_eq!(Pull::from_word(300_000 << 32 | 2 << 8 | 2), Ok(pull.clone()));
        assert_eq!("slow 2 300000".parse(), Ok(pull));
        assert_eq!("spurious any".parse(), Pull::from_word(0xff03));
        assert_eq!("pooling 1 1".parse(), Pull::from_word(1 << 32 | 1 << 8 | 5));
    }

    #[test]
    fn what_does_not_exist_is_refused_by_name() {
        let says = |line: &str| line.parse::<Pull>().unwrap_err().to_string();
        assert_eq!(
            says("burn 0"),
            "there is no lever `burn`; hang, fault, slow, spurious, stall, pooling and first exist"
        );
        assert_eq!(says("hang 3"), "there is no core `3`; 0, 1, 2 and any exist");
        assert_eq!(says("hang 0 x"), "`x` is not a number below 2^32");
        assert_eq!(says("hang 0 1 2"), "`2` is not a number below 2^32");
        assert!(Pull::from_word(7).is_err() && Pull::from_word(1 << 16).is_err());
    }
}
