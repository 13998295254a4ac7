//! The boot script in U-Boot, in QEMU: which system starts, and what the boot state says afterwards.
//!
//! ```text
//! boot.cmd ─▶ disk (GPT: config, bootstate, boot_a, boot_b) ─▶ Debian's U-Boot in QEMU ─▶ a kernel that says its name
//!                         ▲                                                                      and its command line
//!                         └── fw_setenv, as RAUC calls it; power losses, byte by byte
//! ```
//! The kernels are a few instructions: they print their letter and the device tree that U-Boot hands over, and switch off.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::archive::{self, Pin};
use crate::board::qemu;
use crate::kernel::succeed;
use crate::need::{self, DOSFSTOOLS, DTC, FW_SETENV, MKIMAGE, MTOOLS, Need, QEMU_LIBRARIES, SFDISK};
use crate::step::{self, Counts};

/// U-Boot for QEMU, of Debian 12.
const UBOOT: &str = "02a14f0876b76c0d7d7934e9b83a77515c5bdbad1e00af84c445bfeb1e6b8665  pool/main/u/u-boot/u-boot-qemu_2023.01+dfsg-2+deb12u3_all.deb";
/// The script.
const SCRIPT: &str = "yocto/meta-cairn/recipes-bsp/u-boot/files/boot.cmd";
/// Everything that prepares a disk.
const TOOLS: &[Need] = &[MKIMAGE, SFDISK, FW_SETENV, MTOOLS, DOSFSTOOLS, DTC];
/// The partitions: name, first sector, sectors.
const PARTITIONS: &[(&str, u64, u64)] =
    &[("config", 64, 2048), ("bootstate", 2112, 128), ("boot_a", 2304, 2048), ("boot_b", 4608, 2048)];
const SECTOR: u64 = 512;
const DISK_BYTES: u64 = 8 << 20;
/// Where the two copies of the state are on the disk.
const COPIES: [u64; 2] = [2112 * SECTOR, 2112 * SECTOR + 0x8000];
const COPY_BYTES: u64 = 0x4000;
/// U-Boot's flash.
const FLASH_BYTES: u64 = 64 << 20;
/// TIMEOUT: seconds of a start; it takes 2 on an idle machine.
const LIMIT: &str = "120";

/// What must hold: a sentence, and how it is tried.
type Case = (&'static str, fn(&Bench) -> Result<()>);

const CASES: &[Case] = &[
    ("a new disk starts A and has a state then", a_new_disk),
    ("a system without tries left falls back to the other", fallback),
    ("a system that was marked good keeps its turn", marked_good),
    ("both systems bad is said, on the command line as well", both_bad),
    ("whoever a machine is, it is told at every start", identity),
    ("an order without systems is replaced", strange_order),
    ("a system whose kernel is damaged loses its tries", damaged_kernel),
    ("power lost while the state is written leaves the old or the new one", power_loss),
    ("a disk that cannot be written starts all the same", read_only),
];

/// Runs all of it by itself.
///
/// # Errors
/// What cannot be had.
pub(crate) fn run() -> Result<ExitCode> {
    let mut counts = Counts::default();
    test(&mut counts)?;
    println!("{counts}");
    Ok(if counts.succeeded() && counts.skipped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs every case and counts it.
///
/// # Errors
/// A disk that cannot be prepared.
pub(crate) fn test(counts: &mut Counts) -> Result<()> {
    println!("== boot script under U-Boot");
    let missing = need::provide(&[TOOLS, QEMU_LIBRARIES].concat());
    if let Some(need) = missing.first() {
        counts.skip("boot script", &format!("needs {}", need.name));
        return Ok(());
    }
    let bench = Bench::prepare()?;
    for (sentence, case) in CASES {
        let outcome = case(&bench);
        println!("test {sentence} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        if let Err(error) = &outcome {
            println!("{error:#}");
        }
        counts.step(outcome.is_ok());
    }
    Ok(())
}

/// What a disk needs to start in the machine: the kernel of slot A, and the device tree.
pub(crate) fn parts(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let (image, source, tree) = (folder.join("kernel"), folder.join("board.dts"), folder.join("board.dtb"));
    fs::write(&image, kernel('A'))?;
    fs::write(&source, BOARD)?;
    succeed(Command::new("dtc").arg("-q").arg("-o").arg(&tree).arg(&source))?;
    Ok((image, tree))
}

/// Starts the machine with a disk, and returns what it printed.
pub(crate) fn start(disk: &Path) -> Result<String> {
    let bench = Bench::prepare()?;
    // Most of the disk is a hole, which a copy would fill.
    fs::hard_link(disk, bench.disk())?;
    Ok(bench.boot()?.0)
}

/// Makes U-Boot's flash: as it is, but that it does not wait for a key.
///
/// # Errors
/// What cannot be fetched, another U-Boot.
pub(crate) fn make_flash(flash: &Path) -> Result<()> {
    let firmware = archive::unpacked("u-boot", &Pin::list(UBOOT)?)?.join("usr/lib/u-boot/qemu_arm64/u-boot.bin");
    let mut bytes = fs::read(&firmware).with_context(|| format!("read {}", firmware.display()))?;
    let wait = b"bootdelay=2\0";
    let at = bytes.windows(wait.len()).position(|window| window == wait).context("U-Boot's default is another")?;
    bytes[at + wait.len() - 2] = b'0';
    bytes.resize(usize::try_from(FLASH_BYTES)?, 0);
    Ok(fs::write(flash, bytes)?)
}

fn a_new_disk(bench: &Bench) -> Result<()> {
    bench.fresh()?;
    bench.boot()?.started("A", "A=2 B=3")?.says("BOTH COPIES OF THE BOOT STATE ARE DAMAGED")?;
    ensure!(bench.state()? == ["A B", "2", "3"], "the state is {:?}", bench.state()?);
    Ok(())
}

fn fallback(bench: &Bench) -> Result<()> {
    bench.with_state(["B A", "3", "3"])?;
    bench.boot()?.started("B", "A=3 B=2")?;
    bench.boot()?.started("B", "A=3 B=1")?;
    bench.boot()?.started("B", "A=3 B=0")?;
    bench.boot()?.started("A", "A=2 B=0")?;
    Ok(())
}

fn marked_good(bench: &Bench) -> Result<()> {
    bench.with_state(["B A", "3", "1"])?;
    bench.boot()?.started("B", "A=3 B=0")?;
    // RAUC's mark-good.
    bench.set("BOOT_B_LEFT", "3")?;
    bench.boot()?.started("B", "A=3 B=2")?;
    Ok(())
}

fn both_bad(bench: &Bench) -> Result<()> {
    bench.with_state(["A B", "0", "0"])?;
    bench.boot()?.started("A", "A=0 B=1")?.says("BOTH SYSTEMS ARE BAD")?.says("rauc.slot=A cairn.exhausted")?;
    bench.boot()?.started("B", "A=0 B=0")?.says_not("cairn.exhausted")?;
    Ok(())
}

fn identity(bench: &Bench) -> Result<()> {
    const IDENTITY: &str = "0123456789abcdef0123456789abcdef";
    bench.with_state(["A B", "1", "3"])?;
    bench.boot()?.started("A", "A=0 B=3")?.says_not("systemd.machine_id")?;
    bench.set("MACHINE_ID", IDENTITY)?;
    // Whatever is damaged, one copy of the two has it.
    bench.boot()?.started("B", "A=0 B=2")?.says(&format!("systemd.machine_id={IDENTITY}"))?;
    bench.write(COPIES[0], &[0; 8])?;
    bench.boot()?.started("B", "A=0 B=1")?.says(&format!("systemd.machine_id={IDENTITY}"))?;
    Ok(())
}

fn strange_order(bench: &Bench) -> Result<()> {
    bench.with_state(["C", "3", "3"])?;
    bench.boot()?.says("the boot order C names no system")?.started("A", "A=2 B=3")?;
    Ok(())
}

fn damaged_kernel(bench: &Bench) -> Result<()> {
    bench.with_state(["B A", "3", "1"])?;
    // In the middle of the FIT, which lies behind the FAT's tables and folder.
    bench.damage_kernel("boot_b")?;
    // The script resets the machine, which stays the same one here.
    bench.boot()?.says("starting B")?.says("B CANNOT BE STARTED")?.started("A", "A=2 B=0")?;
    Ok(())
}

/// The state is written as two copies, one after the other. Power may go before, within, between and after them.
fn power_loss(bench: &Bench) -> Result<()> {
    bench.with_state(["A B", "2", "3"])?;
    // Both copies have what is old.
    bench.boot()?.started("A", "A=1 B=3")?;
    let old = bench.copies()?;
    bench.boot()?.started("A", "A=0 B=3")?;
    let new = bench.copies()?;
    ensure!(old[0] == old[1] && new[0] == new[1] && old != new, "the copies are not written as two");
    for (first_bytes, second_bytes, slot, left) in
        [(0, 2, "A", "A=0 B=3"), (0, usize::MAX, "A", "A=0 B=3"), (2, usize::MAX, "B", "A=0 B=2")]
    {
        let torn = |old: &[u8], new: &[u8], bytes: usize| {
            let bytes = bytes.min(new.len());
            [&new[..bytes], &old[bytes..]].concat()
        };
        bench.write(COPIES[0], &torn(&old[0], &new[0], first_bytes))?;
        bench.write(COPIES[1], &torn(&old[1], &new[1], second_bytes))?;
        let boot = bench.boot()?;
        boot.started(slot, left)?.says_not("BOTH COPIES")?;
    }
    Ok(())
}

fn read_only(bench: &Bench) -> Result<()> {
    bench.with_state(["A B", "3", "3"])?;
    bench.boot_with("readonly=on")?.says("THE BOOT STATE CANNOT BE SAVED")?.started("A", "A=2 B=3")?;
    ensure!(bench.state()? == ["A B", "3", "3"], "the state is {:?}", bench.state()?);
    Ok(())
}

/// A folder with a disk, and the machine that starts from it.
struct Bench {
    folder: PathBuf,
    qemu: PathBuf,
}

/// What the machine printed.
struct Boot(String);

impl Bench {
    fn prepare() -> Result<Self> {
        let qemu = qemu::found()?;
        let folder = step::target().join("bootloader");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let bench = Self { folder, qemu };
        make_flash(&bench.folder.join("flash"))?;
        bench.make_disk()?;
        Ok(bench)
    }

    fn make_disk(&self) -> Result<()> {
        let script = step::workspace().join(SCRIPT);
        let script = script.to_str().context("the workspace's path is text")?;
        self.tool("mkimage", &["-A", "arm64", "-T", "script", "-C", "none", "-d", script, "boot.scr"])?;
        fs::write(self.folder.join("board.dts"), BOARD)?;
        self.tool("dtc", &["-q", "-o", "board.dtb", "board.dts"])?;
        fs::write(self.folder.join("kernel.its"), KERNEL_FIT)?;
        fs::File::create(self.folder.join("new"))?.set_len(DISK_BYTES)?;
        self.partition()?;
        self.fill("config", &["boot.scr"])?;
        // One bundle serves both slots, so its command lines are for either.
        let quoted = |label| format!("root=/dev/{label} create=\"{label},,,ro,0 8\"");
        let lines = format!("system_args_A={}\nsystem_args_B={}\n", quoted("boot_a"), quoted("boot_b"));
        fs::write(self.folder.join("cmdline.env"), lines)?;
        for (label, letter) in [("boot_a", 'A'), ("boot_b", 'B')] {
            fs::write(self.folder.join("kernel"), kernel(letter))?;
            self.tool("mkimage", &["-f", "kernel.its", "cairn.fit"])?;
            self.fill(label, &["cairn.fit", "cmdline.env"])?;
        }
        Ok(())
    }

    fn partition(&self) -> Result<()> {
        let mut table = String::from("label: gpt\nunit: sectors\nfirst-lba: 64\n");
        for (name, start, size) in PARTITIONS {
            let bootable = if *name == "config" { ", attrs=\"LegacyBIOSBootable\"" } else { "" };
            table += &format!("start={start}, size={size}, name={name}{bootable}\n");
        }
        let mut sfdisk = self.command("sfdisk").args(["--quiet", "new"]).stdin(Stdio::piped()).spawn()?;
        sfdisk.stdin.take().context("sfdisk reads")?.write_all(table.as_bytes())?;
        ensure!(sfdisk.wait()?.success(), "sfdisk refuses the table");
        Ok(())
    }

    /// Makes a FAT with these files, and puts it into its partition of the new disk.
    fn fill(&self, label: &str, files: &[&str]) -> Result<()> {
        let (start, size) = extent(label)?;
        let fat = self.folder.join("fat");
        fs::File::create(&fat)?.set_len(size)?;
        self.tool("mkfs.vfat", &["-F", "12", "-n", "CAIRN", "fat"])?;
        for file in files {
            self.tool("mcopy", &["-o", "-i", "fat", file, &format!("::{file}")])?;
        }
        write(&self.folder.join("new"), start, &fs::read(&fat)?)?;
        Ok(fs::remove_file(fat)?)
    }

    /// Gives the machine a disk that no machine has started from.
    fn fresh(&self) -> Result<()> {
        fs::copy(self.folder.join("new"), self.disk())?;
        Ok(())
    }

    /// Gives the machine a disk with `BOOT_ORDER`, `BOOT_A_LEFT` and `BOOT_B_LEFT`.
    fn with_state(&self, state: [&str; 3]) -> Result<()> {
        self.fresh()?;
        for (name, value) in NAMES.iter().zip(state) {
            self.set(name, value)?;
        }
        Ok(())
    }

    /// Sets a variable as RAUC does on a running system: in the first copy.
    fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.folder.join("fw_env.config"), format!("disk {:#x} {COPY_BYTES:#x}\n", COPIES[0]))?;
        fs::write(self.folder.join("defaults"), "cairn=test\n")?;
        self.tool("fw_setenv", &["-c", "fw_env.config", "-f", "defaults", name, value])
    }

    fn state(&self) -> Result<Vec<String>> {
        fs::write(self.folder.join("fw_env.config"), format!("disk {:#x} {COPY_BYTES:#x}\n", COPIES[0]))?;
        let mut printenv = self.command("fw_printenv");
        let output = printenv.args(["-c", "fw_env.config", "-n"]).args(NAMES).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "fw_printenv: {}", String::from_utf8_lossy(&output.stderr));
        Ok(text.lines().map(|line| line.rsplit('=').next().unwrap_or(line).to_owned()).collect())
    }

    fn boot(&self) -> Result<Boot> {
        self.boot_with("readonly=off")
    }

    /// Starts the machine, and waits until it is off.
    fn boot_with(&self, options: &str) -> Result<Boot> {
        let mut command = self.command("timeout");
        command.arg(LIMIT).arg(&self.qemu).args(["-M", "virt", "-cpu", "cortex-a57", "-m", "256", "-nodefaults"]);
        command.args(["-display", "none", "-serial", "stdio"]);
        command.args(["-drive", "if=pflash,format=raw,file=flash,readonly=on"]);
        command.arg("-drive").arg(format!("if=none,id=disk,format=raw,file=disk,{options}"));
        command.args(["-device", "virtio-blk-device,drive=disk"]).stdin(Stdio::null());
        let output = command.output().context("QEMU cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("QEMU ended with {}: {}\n{text}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(Boot(text))
    }

    fn copies(&self) -> Result<[Vec<u8>; 2]> {
        let copy = |at| {
            let mut bytes = vec![0; usize::try_from(COPY_BYTES)?];
            let mut disk = fs::File::open(self.disk())?;
            disk.seek(SeekFrom::Start(at))?;
            disk.read_exact(&mut bytes)?;
            anyhow::Ok(bytes)
        };
        Ok([copy(COPIES[0])?, copy(COPIES[1])?])
    }

    /// Changes one byte of the kernel's FIT in a partition.
    fn damage_kernel(&self, label: &str) -> Result<()> {
        let (start, size) = extent(label)?;
        let disk = fs::read(self.disk())?;
        let (from, to) = (usize::try_from(start)?, usize::try_from(start + size)?);
        let magic = 0x644d_5241_u32.to_le_bytes();
        let at = disk[from..to].windows(4).position(|window| window == magic).context("there is a kernel")?;
        self.write(start + u64::try_from(at)? + 8, &[0xff])
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        write(&self.disk(), at, bytes)
    }

    fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn tool(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let output = self.command(program).args(arguments).output().with_context(|| format!("start {program}"))?;
        if !output.status.success() {
            bail!("{program} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("PATH", step::search_path()).stdin(Stdio::null());
        command
    }
}

impl Boot {
    /// The system that started last, with its command line, and how many tries are left.
    fn started(&self, slot: &str, left: &str) -> Result<&Self> {
        self.says(&format!("cairn: starting {slot}, tries left {left},"))?;
        let label = if slot == "A" { "boot_a" } else { "boot_b" };
        self.says(&format!("KERNEL {slot}\n"))?
            .says(&format!("root=/dev/{label} create=\"{label},,,ro,0 8\" rauc.slot={slot} "))
    }

    fn says(&self, words: &str) -> Result<&Self> {
        ensure!(self.0.contains(words), "{words:?} is missing in:\n{}", self.0);
        Ok(self)
    }

    fn says_not(&self, words: &str) -> Result<&Self> {
        ensure!(!self.0.contains(words), "{words:?} is in:\n{}", self.0);
        Ok(self)
    }
}

/// The state's variables.
const NAMES: [&str; 3] = ["BOOT_ORDER", "BOOT_A_LEFT", "BOOT_B_LEFT"];

/// First byte and bytes of a partition.
fn extent(label: &str) -> Result<(u64, u64)> {
    let found = PARTITIONS.iter().find(|(name, ..)| *name == label).context("the table has the partition")?;
    Ok((found.1 * SECTOR, found.2 * SECTOR))
}

fn write(file: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(file)?;
    file.seek(SeekFrom::Start(at))?;
    Ok(file.write_all(bytes)?)
}

/// What the kernels are told about the machine; U-Boot adds the command line. It is QEMU's by name.
const BOARD: &str = r#"/dts-v1/;
/ {
    #address-cells = <2>;
    #size-cells = <2>;
    compatible = "linux,dummy-virt";
    chosen { };
    memory@40000000 { device_type = "memory"; reg = <0 0x40000000 0 0x10000000>; };
};
"#;

/// A FIT image as the boards' images have it: kernel and device tree, with checksums.
const KERNEL_FIT: &str = r#"/dts-v1/;
/ {
    description = "cairn";
    #address-cells = <1>;
    images {
        kernel {
            data = /incbin/("kernel");
            type = "kernel"; arch = "arm64"; os = "linux"; compression = "none";
            load = <0x40400000>; entry = <0x40400000>;
            hash { algo = "sha256"; };
        };
        fdt {
            data = /incbin/("board.dtb");
            type = "flat_dt"; arch = "arm64"; compression = "none";
            hash { algo = "sha256"; };
        };
    };
    configurations { default = "conf"; conf { kernel = "kernel"; fdt = "fdt"; }; };
};
"#;

/// An arm64 kernel image that prints its letter and its device tree, and switches the machine off.
///
/// SOURCE: Linux, Documentation/arch/arm64/booting.rst, for the header and x0; Arm PSCI, SYSTEM_OFF; QEMU's virt machine,
/// whose first PL011 is at 0x0900_0000.
fn kernel(letter: char) -> Vec<u8> {
    let mut code = vec![0xd2a1_2001]; // mov x1, #0x09000000
    for byte in format!("KERNEL {letter}\n").bytes() {
        code.push(0x5280_0002 | u32::from(byte) << 5); // mov w2, #byte
        code.push(0x3900_0022); // strb w2, [x1]
    }
    code.extend([
        0xb940_0403, // ldr w3, [x0, #4]: bytes of the device tree
        0x5ac0_0863, // rev w3, w3
        0x3840_1402, // ldrb w2, [x0], #1
        0x3900_0022, // strb w2, [x1]
        0x7100_0463, // subs w3, w3, #1
        0x54ff_ffa1, // b.ne -12
        0x52b0_8000, // mov w0, #0x84000000
        0x7280_0100, // movk w0, #8: SYSTEM_OFF
        0xd400_0002, // hvc #0
        0x1400_0000, // b .
    ]);
    let mut image = Vec::new();
    // Jump over the header; image size, any place of memory, the magic number.
    let header = [0x1400_0010, 0, 0, 0, 0x1000, 0, 0xa, 0, 0, 0, 0, 0, 0, 0, 0x644d_5241, 0];
    for word in header.into_iter().chain(code) {
        image.extend(u32::to_le_bytes(word));
    }
    image.resize(0x1000, 0);
    image
}
