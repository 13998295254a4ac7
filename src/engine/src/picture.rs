//! An encoded picture becomes the bytes of a model's input tensor.
//!
//! ```text
//! JPEG, PNG ─ limits, decode, upright ─▶ pixels ─ resize ─▶ [h, w, c] u8 ─ table of 256 per channel ─▶ tensor
//! ```

use std::io::Cursor;

use bytes::Bytes;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use model::DType;
use serde::Deserialize;

use crate::{Error, Result, TensorInfo};

/// Largest encoded picture.
const MAX_ENCODED_BYTES: usize = 32 << 20;
/// Largest picture: 8192 × 8192.
const MAX_PIXELS: u64 = 1 << 26;
/// Memory that a decoder may use: the largest picture with four channels of 16 bits.
const MAX_DECODER_BYTES: u64 = MAX_PIXELS * 8;

/// How a picture becomes numbers: real = (pixel − mean) / std, per channel, with pixels from 0 to 255.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preprocessing {
    resize: Resize,
    channels: Channels,
    mean: Vec<f32>,
    std: Vec<f32>,
}

/// Filter of the resizing, which stretches the picture to the model's input.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Resize {
    Nearest,
    Bilinear,
    /// Keys' cubic with a = -1/2, as in Pillow.
    Bicubic,
    Lanczos,
}

/// Order of the channels.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Channels {
    Rgb,
    Bgr,
    Gray,
}

impl Channels {
    const fn count(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Gray => 1,
        }
    }
}

impl Preprocessing {
    /// Checks the parameters against the model's input.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn check(&self, input: &TensorInfo) -> Result<(), String> {
        let channels = self.channels.count();
        let [height, width] = extents(input)
            .filter(|_| input.shape[3] == channels)
            .ok_or_else(|| format!("input {:?} is {:?}, not [1, h, w, {channels}]", input.name, input.shape))?;
        if u32::try_from(height).is_err() || u32::try_from(width).is_err() {
            return Err(format!("input {:?} of {width} by {height} is too large", input.name));
        }
        if self.mean.len() != channels || self.std.len() != channels {
            return Err(format!("mean and std need {channels} values each, one per channel"));
        }
        if self.mean.iter().any(|mean| !mean.is_finite()) || self.std.iter().any(|std| !std.is_normal()) {
            return Err(format!("mean {:?} and std {:?} must be numbers, and std not 0", self.mean, self.std));
        }
        match (input.dtype, input.quantization) {
            (DType::F32, _) | (DType::I8 | DType::U8, Some(_)) => Ok(()),
            _ => Err(format!("input {:?} is neither real nor quantised with one scale", input.name)),
        }
    }

    /// Decodes `picture` into the bytes of `input`, which was [checked](Self::check).
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] with what is wrong with the picture.
    pub(crate) fn prepare(&self, picture: &[u8], input: &TensorInfo) -> Result<Bytes> {
        let [height, width] = extents(input).ok_or_else(|| Error::Internal("the input is not a picture".into()))?;
        let picture = decode(picture).map_err(|reason| Error::InvalidTensor(format!("picture: {reason}")))?;
        // CAST: both were checked when the package was read.
        let pixels = self.resize(picture, width as u32, height as u32)?;
        Ok(self.quantize(&pixels, input).into())
    }

    /// `[h, w, c]`, u8, red first.
    fn resize(&self, picture: DynamicImage, width: u32, height: u32) -> Result<Vec<u8>> {
        let picture = picture.into_rgb8();
        let resized = match picture.dimensions() == (width, height) {
            true => picture,
            false => self.stretch(&picture, width, height)?,
        };
        Ok(match self.channels {
            Channels::Rgb | Channels::Bgr => resized.into_raw(),
            Channels::Gray => DynamicImage::from(resized).into_luma8().into_raw(),
        })
    }

    fn stretch(&self, picture: &RgbImage, width: u32, height: u32) -> Result<RgbImage> {
        let algorithm = match self.resize {
            Resize::Nearest => ResizeAlg::Nearest,
            Resize::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Resize::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Resize::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        };
        let mut resized = RgbImage::new(width, height);
        // The typed views keep the library's other twelve pixel types out of this crate's code.
        let from = TypedImageRef::<U8x3>::from_buffer(picture.width(), picture.height(), picture);
        let to = TypedImage::<U8x3>::from_buffer(width, height, &mut resized);
        let (Ok(from), Ok(mut to)) = (from, to) else {
            return Err(Error::Internal("a picture's buffer does not fit its extents".into()));
        };
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        let outcome = Resizer::new().resize_typed(&from, &mut to, &options);
        outcome.map_err(|error| Error::Internal(format!("resizing a picture: {error}")))?;
        Ok(resized)
    }

    fn quantize(&self, pixels: &[u8], input: &TensorInfo) -> Vec<u8> {
        let channels = self.channels.count();
        let tables: Vec<Vec<u8>> = (0..channels).map(|channel| self.table(channel, input)).collect();
        let width = input.dtype.bytes();
        let mut tensor = Vec::with_capacity(pixels.len() * width);
        for pixel in pixels.chunks_exact(channels) {
            for (channel, table) in tables.iter().enumerate() {
                let from = if let Channels::Bgr = self.channels { channels - 1 - channel } else { channel };
                let at = usize::from(pixel[from]) * width;
                tensor.extend_from_slice(&table[at..at + width]);
            }
        }
        tensor
    }

    /// The element of the tensor for each value of a pixel's channel.
    fn table(&self, channel: usize, input: &TensorInfo) -> Vec<u8> {
        let real = |pixel: u8| (f32::from(pixel) - self.mean[channel]) / self.std[channel];
        let (scale, zero_point) = input.quantization.unwrap_or((1.0, 0));
        // CAST: saturates far outside every range that follows.
        let step = |pixel| ((real(pixel) / scale).round_ties_even() as i32).saturating_add(zero_point);
        match input.dtype {
            // CAST: in range, and the low byte is the two's complement.
            DType::I8 => (0..=255).map(|pixel| step(pixel).clamp(-128, 127) as u8).collect(),
            DType::U8 => (0..=255).map(|pixel| step(pixel).clamp(0, 255) as u8).collect(),
            _ => (0..=255).flat_map(|pixel| real(pixel).to_le_bytes()).collect(),
        }
    }
}

/// Height and width of an input that is one picture.
pub(crate) fn extents(input: &TensorInfo) -> Option<[usize; 2]> {
    match *input.shape.as_slice() {
        [1, height, width, _] => Some([height, width]),
        _ => None,
    }
}

/// Decodes a picture and turns it upright.
fn decode(encoded: &[u8]) -> Result<DynamicImage, String> {
    if encoded.len() > MAX_ENCODED_BYTES {
        return Err(format!("{} bytes are more than the {MAX_ENCODED_BYTES} allowed", encoded.len()));
    }
    let format = image::guess_format(encoded).map_err(|_| "neither JPEG nor PNG".to_owned())?;
    match format {
        ImageFormat::Jpeg => check_jpeg(encoded)?,
        ImageFormat::Png => {}
        other => return Err(format!("{other:?} is not supported, only JPEG and PNG")),
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    let mut reader = ImageReader::with_format(Cursor::new(encoded), format);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(format!("{width} by {height} is more than the {MAX_PIXELS} pixels allowed"));
    }
    if width == 0 || height == 0 {
        return Err("it has no pixels".to_owned());
    }
    let orientation = decoder.orientation().map_err(|error| error.to_string())?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Checks that a JPEG goes on to its end marker. The decoder fills what is missing with grey and says nothing.
fn check_jpeg(encoded: &[u8]) -> Result<(), String> {
    const END_OF_IMAGE: u8 = 0xd9;
    let truncated = || "the JPEG is truncated: its end marker is missing".to_owned();
    let mut at = 2;
    loop {
        // What lies between markers belongs to a scan: data, stuffed zeros and restart markers.
        let marker = loop {
            match encoded.get(at..at + 2) {
                None => return Err(truncated()),
                Some(&[0xff, code]) if !matches!(code, 0 | 0xff | 0xd0..=0xd7) => break code,
                Some(_) => at += 1,
            }
        };
        at += 2;
        match marker {
            END_OF_IMAGE => return Ok(()),
            0x01 => {}
            _ => {
                let length = encoded.get(at..at + 2).and_then(|length| length.first_chunk());
                let length = length.map(|&length| usize::from(u16::from_be_bytes(length)));
                at += length.ok_or_else(truncated)?;
            }
        }
    }
}

#[cfg(test)]
mod tests;
