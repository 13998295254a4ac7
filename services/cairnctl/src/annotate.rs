//! Boxes around what was seen.

use std::path::Path;

use anyhow::{Context as _, Result};
use api::dbus::Seen;
use image::{Rgb, RgbImage};

/// Colours of classes, in turn.
const COLOURS: [Rgb<u8>; 6] = [
    Rgb([230, 60, 60]),
    Rgb([60, 200, 90]),
    Rgb([70, 120, 240]),
    Rgb([240, 190, 40]),
    Rgb([200, 80, 220]),
    Rgb([40, 200, 210]),
];
/// Extent of a picture for one pixel of line.
const EXTENT_PER_LINE: u32 = 200;

/// Writes the picture with a box for everything that has one; the format follows the file's name.
pub(crate) fn write(encoded: &[u8], seen: &[Seen], target: &Path) -> Result<()> {
    let mut picture = image::load_from_memory(encoded).context("decode the picture")?.into_rgb8();
    for (_, class, _, bounds) in seen {
        draw(&mut picture, *bounds, COLOURS[*class as usize % COLOURS.len()]);
    }
    picture.save(target).with_context(|| format!("write {}", target.display()))
}

/// Draws a box: left, top, right, bottom as fractions.
fn draw(picture: &mut RgbImage, (left, top, right, bottom): (f64, f64, f64, f64), colour: Rgb<u8>) {
    let (width, height) = picture.dimensions();
    if width == 0 || height == 0 {
        return;
    }
    let line = (width.max(height) / EXTENT_PER_LINE).max(1);
    // CAST: a fraction of a u32, and `as` keeps what lies outside within it.
    let pixel = |fraction: f64, extent: u32| ((fraction * f64::from(extent)) as u32).min(extent - 1);
    let (left, right) = (pixel(left, width), pixel(right, width));
    let (top, bottom) = (pixel(top, height), pixel(bottom, height));
    for y in top..=bottom {
        for x in left..=right {
            let depth = (x - left).min(right - x).min(y - top).min(bottom - y);
            if depth < line {
                picture.put_pixel(x, y, colour);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(bounds: (f64, f64, f64, f64)) -> usize {
        let mut picture = RgbImage::new(10, 8);
        draw(&mut picture, bounds, COLOURS[0]);
        picture.pixels().filter(|pixel| **pixel == COLOURS[0]).count()
    }

    #[test]
    fn a_box_is_a_frame_of_one_line() {
        // From (2, 2) to (7, 6): six wide, five high.
        assert_eq!(drawn((0.2, 0.25, 0.7, 0.75)), 2 * 6 + 2 * 3);
        assert_eq!(drawn((0.0, 0.0, 1.0, 1.0)), 2 * 10 + 2 * 6);
    }

    #[test]
    fn a_box_that_makes_no_sense_draws_nothing_or_stays_inside() {
        assert_eq!(drawn((0.7, 0.2, 0.2, 0.7)), 0);
        assert_eq!(drawn((f64::NAN, f64::NAN, f64::NAN, f64::NAN)), 1);
        assert_eq!(drawn((-5.0, -5.0, 5.0, 5.0)), 2 * 10 + 2 * 6);
    }
}
