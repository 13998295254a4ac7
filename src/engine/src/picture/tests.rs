//! Pictures good and bad.

use std::path::Path;

use image::{ExtendedColorType, ImageEncoder};
use proptest::prelude::*;

use super::*;

fn picture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pictures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn png(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let encoder = image::codecs::png::PngEncoder::new(&mut bytes);
    encoder.write_image(rgb, width, height, ExtendedColorType::Rgb8).expect("memory takes a picture");
    bytes
}

fn input(dtype: DType, shape: [usize; 4], quantization: Option<(f32, i32)>) -> TensorInfo {
    TensorInfo { name: "in".into(), dtype, shape: shape.to_vec(), quantization }
}

fn preprocessing(channels: Channels, mean: f32, std: f32) -> Preprocessing {
    let count = channels.count();
    Preprocessing { resize: Resize::Bicubic, channels, mean: vec![mean; count], std: vec![std; count] }
}

/// Two pixels: red, and a dark blue.
const TWO: [u8; 6] = [255, 0, 0, 0, 0, 101];

#[track_caller]
fn check(channels: Channels, input: &TensorInfo, expected: &[u8]) {
    let preprocessing = preprocessing(channels, 1.0, 2.0);
    preprocessing.check(input).unwrap();
    assert_eq!(preprocessing.prepare(&png(2, 1, &TWO), input).unwrap(), expected);
}

#[test]
fn a_picture_of_the_right_size_is_quantised_as_the_package_says() {
    // Real numbers 127, -1/2, a tie that goes to the even 0, and 50. The largest step is above the type's range.
    let signed = input(DType::I8, [1, 1, 2, 3], Some((1.0, 3)));
    check(Channels::Rgb, &signed, &[127, 3, 3, 3, 3, 53]);
    check(Channels::Bgr, &signed, &[3, 3, 127, 53, 3, 3]);
    check(Channels::Rgb, &input(DType::U8, [1, 1, 2, 3], Some((0.5, 10))), &[255, 9, 9, 9, 9, 110]);
    let real = [127.0, -0.5, -0.5, -0.5, -0.5, 50.0];
    check(Channels::Rgb, &input(DType::F32, [1, 1, 2, 3], None), &real.map(f32::to_le_bytes).concat());
}

#[test]
fn a_grey_model_takes_a_colour_picture() {
    let input = input(DType::U8, [1, 1, 2, 1], Some((1.0, 0)));
    let tensor = preprocessing(Channels::Gray, 0.0, 1.0).prepare(&png(2, 1, &TWO), &input).unwrap();
    assert_eq!(tensor, [54, 7].as_slice());
}

#[test]
fn parameters_that_do_not_fit_the_input_are_refused() {
    let rgb = preprocessing(Channels::Rgb, 0.0, 1.0);
    assert!(rgb.check(&input(DType::U8, [1, 8, 8, 1], Some((1.0, 0)))).is_err());
    assert!(rgb.check(&input(DType::U8, [2, 8, 8, 3], Some((1.0, 0)))).is_err());
    assert!(rgb.check(&input(DType::U8, [1, 8, 8, 3], None)).is_err());
    assert!(rgb.check(&input(DType::I32, [1, 8, 8, 3], Some((1.0, 0)))).is_err());
    assert!(preprocessing(Channels::Rgb, 0.0, 0.0).check(&input(DType::F32, [1, 8, 8, 3], None)).is_err());
    assert!(preprocessing(Channels::Rgb, f32::NAN, 1.0).check(&input(DType::F32, [1, 8, 8, 3], None)).is_err());
}

fn refusal(encoded: &[u8]) -> String {
    decode(encoded).expect_err("the picture is refused")
}

#[test]
fn a_truncated_jpeg_is_refused_wherever_it_ends() {
    let whole = picture("chelsea.jpg");
    decode(&whole).unwrap();
    for length in (3..whole.len()).step_by(97).chain([whole.len() - 1]) {
        assert_eq!(refusal(&whole[..length]), "the JPEG is truncated: its end marker is missing", "{length}");
    }
}

#[test]
fn a_truncated_png_is_refused() {
    let whole = png(16, 16, &[7; 16 * 16 * 3]);
    decode(&whole).unwrap();
    for length in 8..whole.len() - 12 {
        refusal(&whole[..length]);
    }
}

#[test]
fn what_is_no_picture_is_refused_by_name() {
    assert_eq!(refusal(b""), "neither JPEG nor PNG");
    assert_eq!(refusal(b"hello"), "neither JPEG nor PNG");
    assert_eq!(refusal(b"GIF89a\x01\0\x01\0"), "Gif is not supported, only JPEG and PNG");
    assert_eq!(refusal(&vec![0; MAX_ENCODED_BYTES + 1]), "33554433 bytes are more than the 33554432 allowed");
}

#[test]
fn a_picture_with_too_many_pixels_is_refused_before_it_is_decoded() {
    let mut huge = png(1, 1, &[0; 3]);
    // The header's chunk: signature 8, length 4, name 4, then width and height; its checksum follows 13 bytes of data.
    huge[16..24].copy_from_slice(&[0, 0, 0x80, 0, 0, 0, 0x80, 0]);
    let checksum = crc32(&huge[12..29]);
    huge[29..33].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(refusal(&huge), "32768 by 32768 is more than the 67108864 pixels allowed");
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_damaged_picture_is_an_error_or_a_picture(
        png_format: bool,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = if png_format { png(32, 32, &[9; 32 * 32 * 3]) } else { picture("chelsea.jpg") };
        for (index, byte) in edits {
            let at = index.index(bytes.len().min(4096));
            bytes[at] = byte;
        }
        if let Ok(picture) = decode(&bytes) {
            prop_assert!(u64::from(picture.width()) * u64::from(picture.height()) <= MAX_PIXELS);
        }
    }
}
