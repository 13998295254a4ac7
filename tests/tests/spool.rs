//! Reports that must not be lost, while the broker is away and the disk is full.

use std::process::Command;

use kit::mqtt::{Event, Limits, Publication, Sender, Settings, Spool};
use testkit::{Broker, BrokerOptions};

/// Where the small disk is, in the process that has one.
const DISK: &str = "CAIRN_TEST_SMALL_DISK";
/// Reports of an hour, one a second.
const HOUR: usize = 3600;

/// Runs one test of this file again in a process of its own, whose only disk of its own has 64 KiB.
fn with_small_disk(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(folder.path()).arg(program).arg(test);
    let output = command.env(DISK, folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn report(number: usize) -> Publication {
    let payload = format!("{number:0400}").into();
    Publication { topic: "reports".into(), payload, ..Publication::default() }
}

#[test]
fn an_hour_without_a_broker_on_a_full_disk_costs_only_the_oldest_reports() {
    let Some(disk) = std::env::var_os(DISK) else {
        return with_small_disk("an_hour_without_a_broker_on_a_full_disk_costs_only_the_oldest_reports");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(an_hour(std::path::Path::new(&disk)));
}

async fn an_hour(disk: &std::path::Path) {
    let mut broker = Broker::start(BrokerOptions::default()).unwrap();
    let mut settings = Settings::new(broker.url());
    (settings.first_wait_ms, settings.longest_wait_ms) = (50, 200);
    broker.stop().unwrap();
    let (link, mut events) = kit::mqtt::open(&settings, "spool", 1, ("will", "offline")).unwrap();
    // The bound is far beyond what the disk takes.
    let spool = Spool::open(&disk.join("spool"), Limits { messages: 1000, bytes: 1 << 20 }).unwrap();
    let mut sender = Sender::new(spool);
    (0..HOUR).for_each(|number| sender.push(report(number)));
    let (kept, dropped) = (sender.spool().len(), sender.spool().dropped());
    assert_eq!(kept + usize::try_from(dropped).unwrap(), HOUR);
    assert!((10..1000).contains(&kept), "{kept} reports fit a disk of 64 KiB");

    broker.start_again().unwrap();
    // The broker keeps the reports for a reader that it knows.
    assert!(reader(&broker).arg("-E").status().unwrap().success());
    let mut online = false;
    while !sender.spool().is_empty() {
        tokio::select! {
            event = events.recv() => match event.unwrap() {
                Event::Connected => online = true,
                Event::Disconnected { .. } => online = false,
                _ => {}
            },
            () = sender.confirmed() => {}
        }
        if online {
            sender.offer(&*link);
        }
    }
    let end = Publication { topic: "end".into(), payload: "end".into(), ..Publication::default() };
    let acknowledged = async { while events.recv().await.is_some() {} };
    let receipt = link.publish_confirmed(end).unwrap();
    tokio::select! {
        receipt = receipt => receipt.unwrap(),
        () = acknowledged => panic!("the link ended"),
    }
    let output = reader(&broker).args(["-W", "120", "-C", &(kept + 1).to_string()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let received: Vec<&str> = text.lines().collect();
    let kept = (HOUR - kept..HOUR).map(|number| format!("{number:0400}"));
    let expected: Vec<String> = kept.chain(["end".into()]).collect();
    assert_eq!(received, expected, "every report that was kept arrives once and in order");
}

/// A reader whose session outlives its connection.
fn reader(broker: &Broker) -> Command {
    let mut command = broker.client("mosquitto_sub").unwrap();
    command.args(["-V", "311", "-c", "-i", "reader", "-q", "1", "-t", "reports", "-t", "end"]);
    command
}
