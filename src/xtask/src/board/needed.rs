//! Which check shows that a patch is needed: a table of `kernel-patches/README.md`, which people read as well.
//!
//! ```text
//! | 1005 | `a job that hangs` | what was seen … |
//! ```

use std::fs;

use anyhow::{Context, Result};

use crate::kernel::FOLDER;
use crate::step;

/// The check that does not pass without the patch.
///
/// # Errors
/// A patch without a row, or one that only a board or another kernel can show to be needed.
pub(super) fn check(patch: u32) -> Result<String> {
    let file = step::workspace().join(FOLDER).join("README.md");
    let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
    let row = rows(&text).find(|(number, _)| *number == patch);
    let (_, check) = row.with_context(|| format!("{} has no row for {patch:04}", file.display()))?;
    Ok(check.with_context(|| format!("no check of the board shows that {patch:04} is needed"))?.to_owned())
}

/// The table's rows: the number, and the check, where there is one.
fn rows(text: &str) -> impl Iterator<Item = (u32, Option<&str>)> {
    text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let number = cells.next()?.parse().ok()?;
        let check = cells.next()?.strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
        Some((number, check))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{self, Line};

    #[test]
    fn a_row_names_a_check_or_none() {
        let text = "| patch | check |\n|---|---|\n| 0001 | `a b` | yes |\n| 1008 | a board |\n| 1001 errors | text |\n";
        assert_eq!(rows(text).collect::<Vec<_>>(), [(1, Some("a b")), (1008, None)]);
    }

    #[test]
    fn every_patch_has_a_row_and_every_check_exists() {
        let workspace = step::workspace();
        let read = |path: &str| fs::read_to_string(workspace.join(path)).unwrap();
        let table = read("kernel-patches/README.md");
        let programs = read("tests/examples/virtual_board/driver.rs") + &read("tests/conformance/rocket.c");
        for line in Line::all().unwrap() {
            for patch in line.series().unwrap() {
                let number = kernel::number(&patch).unwrap();
                let row = rows(&table).find(|(of, _)| *of == number);
                let (_, check) = row.unwrap_or_else(|| panic!("{patch} has no row"));
                let exists = check
                    .is_none_or(|check| programs.contains(&format!("\"{}", check.trim_start_matches("conformance: "))));
                assert!(exists, "{patch}: there is no check {check:?}");
            }
        }
    }
}
