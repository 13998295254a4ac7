//! A block map (`.bmap`): which blocks of an image hold anything, and their checksums.
//!
//! SOURCE: version 2.0 of the format, as bmap-tools and OpenEmbedded's wic write it.

use anyhow::{Context as _, Result, bail, ensure};
use ring::digest::{SHA256, digest};

/// What an image holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Bytes of the image.
    pub bytes: u64,
    /// What is in it, in order. Between ranges nothing matters.
    pub ranges: Vec<Range>,
}

/// Bytes of an image that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// SHA-256 of the bytes, where the map has it.
    pub sha256: Option<[u8; 32]>,
}

impl Map {
    /// Reads a block map, and holds it against its own checksum.
    ///
    /// # Errors
    /// What is not a block map of version 2, or one that contradicts itself.
    pub fn parse(text: &str) -> Result<Self> {
        let document = roxmltree::Document::parse(text).context("the block map is not XML")?;
        let root = document.root_element();
        let version = root.attribute("version").unwrap_or_default();
        ensure!(root.has_tag_name("bmap") && version.starts_with("2."), "no block map of version 2 but {version:?}");
        let field = |name: &str| {
            let element = root.children().find(|child| child.has_tag_name(name));
            element
                .and_then(|child| child.text())
                .map(str::trim)
                .with_context(|| format!("the block map has no {name}"))
        };
        let number = |name: &str| field(name)?.parse::<u64>().with_context(|| format!("{name} is no number"));
        ensure!(field("ChecksumType")? == "sha256", "the block map's checksums are not SHA-256");
        check_own(text, field("BmapFileChecksum")?)?;
        let (bytes, block) = (number("ImageSize")?, number("BlockSize")?);
        ensure!(block > 0, "blocks of no bytes");
        let blocks = root.children().find(|child| child.has_tag_name("BlockMap")).context("the block map is empty")?;
        let mut map = Self { bytes, ranges: Vec::new() };
        for element in blocks.children().filter(|child| child.has_tag_name("Range")) {
            let words = element.text().map(str::trim).unwrap_or_default();
            let range = range(words, block, bytes, map.ranges.last().map_or(0, |range| range.end));
            let range = range.with_context(|| format!("the block map's range {words:?}"))?;
            let sha256 = element.attribute("chksum").context("a range of the block map has no checksum")?;
            map.ranges.push(Range { sha256: Some(hex(sha256)?), ..range });
        }
        Ok(map)
    }

    /// A map of an image of which nothing is known but its size.
    pub fn whole(bytes: u64) -> Self {
        Self { bytes, ranges: vec![Range { start: 0, end: bytes, sha256: None }] }
    }

    /// Bytes that matter.
    pub fn mapped(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }
}

/// `FIRST` or `FIRST-LAST`, in blocks; the last block of an image may be cut off.
fn range(words: &str, block: u64, bytes: u64, after: u64) -> Result<Range> {
    let (first, last) = words.split_once('-').unwrap_or((words, words));
    let (first, last) = (first.trim().parse::<u64>()?, last.trim().parse::<u64>()?);
    let start = first.checked_mul(block).context("too large")?;
    let end = last.checked_add(1).and_then(|blocks| blocks.checked_mul(block)).context("too large")?.min(bytes);
    ensure!(start >= after, "begins before the end of the one before");
    ensure!(start < end, "holds nothing of the image");
    Ok(Range { start, end, sha256: None })
}

/// The map's own checksum is that of its text with zeros in the place of the checksum.
fn check_own(text: &str, named: &str) -> Result<()> {
    let zeros = text.replacen(named, &"0".repeat(named.len()), 1);
    ensure!(hex(named)? == sha256(zeros.as_bytes()), "the block map is damaged: its checksum is another");
    Ok(())
}

fn hex(text: &str) -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    ensure!(text.len() == 64 && text.is_ascii(), "{text:?} is no SHA-256");
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let Some(value) = std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
        else {
            bail!("{text:?} is no SHA-256");
        };
        *byte = value;
    }
    Ok(bytes)
}

/// SHA-256 of the bytes.
fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Map, Range, sha256};

    /// The map of an image, as bmaptool writes it.
    pub(crate) fn map_of(image: &[u8], ranges: &[(usize, usize)]) -> String {
        let mut lines = String::new();
        for (first, last) in ranges {
            let hash = hex(&sha256(&image[first * 4096..((last + 1) * 4096).min(image.len())]));
            lines += &format!("        <Range chksum=\"{hash}\"> {first}-{last} </Range>\n");
        }
        let blocks = image.len().div_ceil(4096);
        let text = format!(
            "<?xml version=\"1.0\" ?>\n<bmap version=\"2.0\">\n    <ImageSize> {} </ImageSize>\n    <BlockSize> 4096 </BlockSize>\n    <BlocksCount> {blocks} </BlocksCount>\n    <MappedBlocksCount> {blocks} </MappedBlocksCount>\n    <ChecksumType> sha256 </ChecksumType>\n    <BmapFileChecksum> {} </BmapFileChecksum>\n    <BlockMap>\n{lines}    </BlockMap>\n</bmap>\n",
            image.len(),
            "0".repeat(64)
        );
        text.replacen(&"0".repeat(64), &hex(&sha256(text.as_bytes())), 1)
    }

    fn hex(hash: &[u8; 32]) -> String {
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn ranges_are_bytes_and_the_last_one_ends_with_the_image() {
        let image = vec![7; 3 * 4096 + 10];
        let map = Map::parse(&map_of(&image, &[(0, 0), (2, 3)])).unwrap();
        let ends: Vec<_> = map.ranges.iter().map(|Range { start, end, .. }| (*start, *end)).collect();
        assert_eq!(ends, [(0, 4096), (8192, 12298)]);
        assert_eq!((map.bytes, map.mapped()), (12298, 8202));
    }

    #[test]
    fn a_map_that_contradicts_itself_is_refused() {
        let image = vec![7; 4 * 4096];
        let good = map_of(&image, &[(0, 1)]);
        for (what, words) in [
            (good.replace("0-1", "0-2"), "its checksum is another"),
            (map_of(&image, &[(1, 2), (0, 0)]), "begins before the end"),
            (good.replace("version=\"2.0\"", "version=\"1.3\""), "no block map of version 2"),
            (good.replace("sha256 ", "sha1 "), "not SHA-256"),
            (good.replace("<ImageSize> 16384", "<ImageSize> many"), "its checksum is another"),
            (String::from("not a map"), "not XML"),
        ] {
            let error = format!("{:#}", Map::parse(&what).unwrap_err());
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}
