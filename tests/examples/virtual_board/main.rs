//! What runs inside the virtual board and says, in TAP, whether the driver and what stands on it do what they should.
//!
//! ```text
//! virtual_board driver stock|patched LIMIT      the driver by its ioctls: the simulator's bytes, the device's counters
//! virtual_board check stock|patched LIMIT NAME  one of these checks, also one that the driver does not survive
//! virtual_board client SEED LIMIT               one of many clients
//! virtual_board service FOLDER                  npud on the driver, with what lies in the folder
//! virtual_board expect FOLDER                   on the host: what the simulator makes of the detector's picture
//! ```
//!
//! LIMIT is how long clients work: `4` rounds, or `120s` on the board's clock.
//!
//! All but the test port would run on a board as it is.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "everything in this program is a test")]

#[path = "../../tests/quantised/mod.rs"]
mod quantised;

mod clients;
mod driver;
mod kernel;
mod port;
mod recorder;
mod sample;
mod service;
mod tap;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["driver", flavour @ ("stock" | "patched"), limit] => driver::run(flavour == "patched", limit.parse().unwrap()),
        ["check", flavour @ ("stock" | "patched"), limit, name] => {
            driver::check(flavour == "patched", limit.parse().unwrap(), name)
        }
        ["client", seed, limit] => clients::client(seed.parse().unwrap(), limit.parse().unwrap()),
        ["service", folder] => service::run(folder.as_ref()),
        ["expect", folder] => service::expect(folder.as_ref()),
        _ => {
            eprintln!(
                "usage: virtual_board driver stock|patched LIMIT | check stock|patched LIMIT NAME | client SEED LIMIT | service|expect FOLDER"
            );
            ExitCode::FAILURE
        }
    }
}
