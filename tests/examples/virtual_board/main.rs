//! What runs inside the virtual board and says, in TAP, whether the driver and what stands on it do what they should.
//!
//! ```text
//! virtual_board driver stock|patched ROUNDS  the driver by its ioctls: the simulator's bytes, the device's counters
//! virtual_board close-during-job             the one check that takes a kernel with the stock driver down
//! virtual_board client SEED ROUNDS           one of many clients
//! virtual_board service FOLDER               npud on the driver, with what lies in the folder
//! virtual_board expect FOLDER                on the host: what the simulator makes of the detector's picture
//! ```
//!
//! All but the test port would run on a board as it is.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "everything in this program is a test")]

#[path = "../../tests/quantised/mod.rs"]
mod quantised;

mod clients;
mod driver;
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
        ["driver", flavour @ ("stock" | "patched"), rounds] => {
            driver::run(flavour == "patched", rounds.parse().unwrap())
        }
        ["close-during-job"] => driver::close_during_job(),
        ["client", seed, rounds] => clients::client(seed.parse().unwrap(), rounds.parse().unwrap()),
        ["service", folder] => service::run(folder.as_ref()),
        ["expect", folder] => service::expect(folder.as_ref()),
        _ => {
            eprintln!(
                "usage: virtual_board driver stock|patched ROUNDS | close-during-job | client SEED ROUNDS | service|expect FOLDER"
            );
            ExitCode::FAILURE
        }
    }
}
