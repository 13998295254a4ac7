//! `cargo xtask image`: the disk of the appliance by ordinary tools, from the table that wic reads.
//!
//! ```text
//! root folder ─▶ erofs ─▶ verity.sh ─▶ rootfs, root hash ─┐
//! kernel, device tree ─────────────────▶ boot.sh ─▶ boot ─┼─▶ disk (GPT)
//! boot.cmd ─▶ FAT, boot state, empty data ────────────────┘
//! ```
//! Two runs give the same bytes. What wic makes of the table is the same in names, places and contents; identifiers and the
//! order of a file system's blocks are its own.

mod bundle;
mod guest;
mod initramfs;
mod journal;
mod modules;
mod outside;
mod root;
pub(crate) mod story;
pub(crate) mod table;
mod wks;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand};

use crate::bootloader;
use crate::kernel::succeed;
use crate::need::{self, DOSFSTOOLS, DTC, EROFS, MKENVIMAGE, MKFS, MKIMAGE, MTOOLS, Need, SFDISK, VERITYSETUP};
use crate::step::{self, Counts};
use wks::{Content, Partition, SECTOR};

/// What makes a disk.
pub(crate) const NEEDS: &[Need] = &[EROFS, VERITYSETUP, MKIMAGE, MKENVIMAGE, DTC, MTOOLS, DOSFSTOOLS, SFDISK, MKFS];
/// The date of every file, as the layer's builds have one: 2011-04-06.
const EPOCH: &str = "1302044400";
/// The machine that the stand-in is made for.
const MACHINE: &str = "cairn-qemuarm64";
/// The boot script.
const SCRIPT: &str = "yocto/meta-cairn/recipes-bsp/u-boot/files/boot.cmd";
/// What a person may write, as an example.
const EXAMPLE: &str = "src/provision/tests/complete.toml";
/// The makers that the layer uses as well.
const TOOLS: &str = "yocto/meta-cairn/files/image";

/// What to do with an image.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Makes a disk of a root file system, a kernel and a device tree.
    Layout(Box<Layout>),
    /// Makes a small one twice, and starts it in U-Boot.
    Check,
    /// Starts one with Debian's packages in the virtual board, updates it, breaks it, and sees it come back.
    Test,
}

/// Of what a disk is made.
#[derive(Debug, Args)]
pub(crate) struct Layout {
    /// The root file system, as a folder
    #[arg(long)]
    root: PathBuf,
    /// The kernel (arm64 Image)
    #[arg(long)]
    kernel: PathBuf,
    /// Where the kernel runs
    #[arg(long, default_value = "0x40400000")]
    load: String,
    /// The device tree
    #[arg(long)]
    tree: PathBuf,
    /// For a kernel that cannot set up its root by itself
    #[arg(long)]
    initramfs: Option<PathBuf>,
    /// Further words of the kernel's command line
    #[arg(long, default_value = "console=ttyAMA0,115200")]
    cmdline: String,
    /// What the salt of the verified root is made from: one for one version
    #[arg(long, default_value = "0.1.0")]
    version: String,
    /// The table of partitions
    #[arg(long, default_value = "qemuarm64")]
    machine: String,
    /// The disk that is made
    output: PathBuf,
}

/// Does it.
///
/// # Errors
/// Tools that are missing, and what they say.
pub(crate) fn run(action: &Action) -> Result<ExitCode> {
    need::require(NEEDS)?;
    match action {
        Action::Layout(layout) => layout.make()?,
        Action::Test => return story::run(),
        Action::Check => {
            let mut counts = Counts::default();
            test(&mut counts)?;
            println!("{counts}");
            return Ok(counts.exit_code());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A small disk, made twice: the same bytes, verified, and U-Boot starts its slot A.
///
/// # Errors
/// Tools that cannot be started.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    println!("\n== disk of the image");
    if let Some(need) = need::provide(&[NEEDS, need::QEMU_LIBRARIES].concat()).first() {
        counts.skip("disk of the image", &format!("needs {}", need.name));
        return Ok(());
    }
    let folder = step::target().join("image-test");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let (kernel, tree) = bootloader::parts(&folder)?;
    let layout = |name: &str| Layout {
        root: step::workspace().join("yocto"),
        kernel: kernel.clone(),
        load: String::from("0x40400000"),
        tree: tree.clone(),
        initramfs: None,
        cmdline: String::from("console=ttyAMA0,115200"),
        version: String::from("0.1.0"),
        machine: String::from("qemuarm64"),
        output: folder.join(name),
    };
    let (first, second) = (layout("first.disk"), layout("second.disk"));
    let checks: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("a disk is made", &|| first.make()),
        ("two disks of the same are the same bytes", &|| {
            second.make()?;
            succeed(Command::new("cmp").arg(&first.output).arg(&second.output))
        }),
        ("the root is what its command line says", &|| verified(&first)),
        ("U-Boot starts slot A with the verified root", &|| started(&first.output)),
    ];
    for (sentence, holds) in checks {
        let outcome = holds();
        println!("test {sentence} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        if let Err(error) = &outcome {
            println!("{error:#}");
        }
        counts.step(outcome.is_ok());
    }
    Ok(fs::remove_dir_all(&folder)?)
}

/// Holds the partition of the disk against the root hash, and a changed byte of it as well.
fn verified(layout: &Layout) -> Result<()> {
    let table = wks::read(&layout.machine)?;
    let slot = table.iter().find(|part| part.name == "rootfs_a").context("there is a slot A")?;
    let cmdline = fs::read_to_string(layout.output.with_extension("parts").join("cmdline.env"))?;
    let words: Vec<&str> = cmdline.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "sha256").context("a root hash is named")?;
    let (blocks, hash) = (words[at - 2].parse::<u64>()?, words[at + 1]);
    let image = layout.output.with_extension("root");
    let mut disk = File::open(&layout.output)?;
    disk.seek(SeekFrom::Start(slot.start))?;
    // The tree has one hash of 32 bytes for a block, and a little more for the levels above.
    let used = blocks * 4096 + blocks * 64 + (1 << 16);
    ensure!(used <= slot.bytes, "the root does not fit its partition");
    std::io::copy(&mut disk.take(used), &mut File::create(&image)?)?;
    let verify = || {
        let mut command = tool("veritysetup");
        command.arg("verify").arg(format!("--hash-offset={}", blocks * 4096));
        succeed(command.arg(&image).arg(&image).arg(hash))
    };
    verify()?;
    let mut file = File::options().read(true).write(true).open(&image)?;
    file.seek(SeekFrom::Start(blocks * 2048))?;
    let mut byte = [0];
    file.read_exact(&mut byte)?;
    file.seek_relative(-1)?;
    file.write_all(&[!byte[0]])?;
    ensure!(verify().is_err(), "a changed byte is not found");
    Ok(())
}

fn started(disk: &Path) -> Result<()> {
    let said = bootloader::start(disk)?;
    for words in [
        "cairn: starting A, tries left A=2 B=3, order A B",
        "KERNEL A",
        "dm-mod.create=\"cairn-root,,,ro,0 ",
        "verity 1 PARTLABEL=rootfs_a PARTLABEL=rootfs_a 4096 4096 ",
        "console=ttyAMA0,115200 rauc.slot=A",
    ] {
        ensure!(said.contains(words), "{words:?} is missing in:\n{said}");
    }
    ensure!(!said.contains("DAMAGED"), "a new disk's boot state is damaged:\n{said}");
    Ok(())
}

impl Layout {
    fn make(&self) -> Result<()> {
        let table = wks::read(&self.machine)?;
        let work = self.output.with_extension("parts");
        if work.exists() {
            fs::remove_dir_all(&work)?;
        }
        fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
        self.parts(&work)?;
        let bytes = partition(&self.output, &table)?;
        for part in &table {
            fill(&self.output, part, &work).with_context(|| format!("fill {}", part.name))?;
        }
        println!("{}: {} MiB", self.output.display(), bytes >> 20);
        for Partition { name, start, bytes, .. } in &table {
            println!("  {name:10} at {start:>11}, {bytes:>11} bytes");
        }
        Ok(())
    }

    /// Makes every file that the table names, under the names that the layer gives them.
    fn parts(&self, work: &Path) -> Result<()> {
        let root = work.join("IMAGE.verity");
        let mut erofs = tool("mkfs.erofs");
        erofs.args(["--quiet", "-zlz4hc", "-T", EPOCH, "-U", "00000000-0000-4000-8000-000000000001", "--all-root"]);
        succeed(erofs.arg(&root).arg(&self.root))?;
        let verity = tool("sh").arg(script("verity.sh")).arg(&root).arg(self.salt()?).arg(&self.cmdline).output()?;
        ensure!(verity.status.success(), "verity.sh: {}", String::from_utf8_lossy(&verity.stderr));
        let cmdline = work.join("cmdline.env");
        fs::write(&cmdline, verity.stdout)?;
        let mut boot = tool("sh");
        boot.arg(script("boot.sh")).arg(work.join("IMAGE.boot")).arg(&self.kernel).arg(&self.load);
        boot.envs(self.initramfs.iter().map(|file| ("INITRAMFS", file)));
        succeed(boot.arg(&cmdline).arg(&self.tree))?;
        state(work)?;
        let mut mkimage = tool("mkimage");
        mkimage.args(["-A", "arm64", "-T", "script", "-C", "none", "-d"]);
        succeed(mkimage.arg(step::workspace().join(SCRIPT)).arg(work.join("boot.scr")).stdout(Stdio::null()))?;
        fs::copy(step::workspace().join(EXAMPLE), work.join("cairn-example.toml"))?;
        Ok(())
    }

    /// SHA-256 of machine and version, as the image class has it.
    fn salt(&self) -> Result<String> {
        let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        write!(sum.stdin.take().context("sha256sum reads")?, "{} {}", self.machine, self.version)?;
        let text = String::from_utf8(sum.wait_with_output()?.stdout)?;
        Ok(text.split(' ').next().unwrap_or_default().to_owned())
    }
}

/// Both copies of the boot state of a new disk: both systems have all their tries.
fn state(work: &Path) -> Result<()> {
    fs::write(work.join("bootstate.txt"), "BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n")?;
    let mut mkenvimage = tool("mkenvimage");
    succeed(mkenvimage.current_dir(work).args(["-s", "0x4000", "-o", "bootstate.copy", "bootstate.txt"]))?;
    let copy = fs::read(work.join("bootstate.copy"))?;
    let mut image = vec![0; 0x10000];
    image[..copy.len()].copy_from_slice(&copy);
    image[0x8000..0x8000 + copy.len()].copy_from_slice(&copy);
    Ok(fs::write(work.join("bootstate.img"), image)?)
}

/// Makes an empty disk with the partitions, and returns its size.
fn partition(disk: &Path, table: &[Partition]) -> Result<u64> {
    let last = table.last().context("there is a partition")?;
    // The second copy of the table is behind everything.
    let bytes = (last.start + last.bytes + (1 << 20)).next_multiple_of(1 << 20);
    File::create(disk).with_context(|| format!("make {}", disk.display()))?.set_len(bytes)?;
    let mut lines = format!("label: gpt\nlabel-id: {}\nunit: sectors\nfirst-lba: 34\n", identifier(0));
    for (part, number) in table.iter().zip(1..) {
        let kind = part.kind.as_deref().unwrap_or("linux");
        let bootable = if part.active { ", attrs=\"LegacyBIOSBootable\"" } else { "" };
        let (start, sectors) = (part.start / SECTOR, part.bytes / SECTOR);
        lines += &format!(
            "start={start}, size={sectors}, type={kind}, uuid={}, name={}{bootable}\n",
            identifier(number),
            part.name
        );
    }
    let mut sfdisk = tool("sfdisk").arg("--quiet").arg(disk).stdin(Stdio::piped()).spawn()?;
    sfdisk.stdin.take().context("sfdisk reads")?.write_all(lines.as_bytes())?;
    ensure!(sfdisk.wait()?.success(), "sfdisk refuses the table:\n{lines}");
    Ok(bytes)
}

/// The same at every run. Two disks may be in one machine, but no slot is found by these.
fn identifier(number: u64) -> String {
    format!("0ca12b00-0000-4000-8000-{number:012x}")
}

fn fill(disk: &Path, part: &Partition, work: &Path) -> Result<()> {
    let file = match &part.content {
        Content::Nothing => return Ok(()),
        Content::File(name) => work.join(name.replace("${IMAGE_LINK_NAME}", "IMAGE")),
        Content::BootFiles => fat(part, work)?,
        Content::Empty(system) => empty(part, system, work)?,
    };
    let mut source = File::open(&file).with_context(|| format!("read {}", file.display()))?;
    let bytes = source.metadata()?.len();
    ensure!(bytes <= part.bytes, "{bytes} bytes are more than the partition's {}", part.bytes);
    let mut target = File::options().write(true).open(disk)?;
    target.seek(SeekFrom::Start(part.start))?;
    copy_sparse(&mut source, &mut target)
}

/// Copies, and leaves out what is zero: the disk is new.
fn copy_sparse(source: &mut File, target: &mut File) -> Result<()> {
    let mut block = vec![0; 1 << 16];
    loop {
        let count = source.read(&mut block)?;
        match &block[..count] {
            [] => return Ok(()),
            zeros if zeros.iter().all(|byte| *byte == 0) => {
                target.seek_relative(i64::try_from(count)?)?;
            }
            bytes => target.write_all(bytes)?,
        }
    }
}

fn fat(part: &Partition, work: &Path) -> Result<PathBuf> {
    let image = work.join(format!("{}.img", part.name));
    File::create(&image)?.set_len(part.bytes)?;
    let label = part.label.as_deref().unwrap_or("CAIRN");
    let mut mkfs = tool("mkfs.vfat");
    mkfs.args(["--invariant", "-i", "ca12b001", "-n", label]).stdout(Stdio::null());
    succeed(mkfs.arg(&image))?;
    for name in ["boot.scr", "cairn-example.toml"] {
        let file = work.join(name);
        succeed(Command::new("touch").arg(format!("--date=@{EPOCH}")).arg(&file))?;
        succeed(tool("mcopy").env("TZ", "UTC").arg("-m").arg("-i").arg(&image).arg(&file).arg("::"))?;
    }
    Ok(image)
}

fn empty(part: &Partition, system: &str, work: &Path) -> Result<PathBuf> {
    ensure!(system == "ext4", "an empty {system} is not understood");
    let image = work.join(format!("{}.img", part.name));
    File::create(&image)?.set_len(part.bytes)?;
    let mut mkfs = tool("mkfs.ext4");
    let seed = "hash_seed=00000000-0000-4000-8000-000000000003,lazy_itable_init=0,lazy_journal_init=0";
    mkfs.args(["-q", "-U", "00000000-0000-4000-8000-000000000002", "-E", seed]);
    mkfs.args(["-L", part.label.as_deref().unwrap_or("data")]);
    succeed(mkfs.env("E2FSPROGS_FAKE_TIME", EPOCH).arg(&image))?;
    Ok(image)
}

fn script(name: &str) -> PathBuf {
    step::workspace().join(TOOLS).join(name)
}

fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", step::search_path()).env("SOURCE_DATE_EPOCH", EPOCH);
    command
}
