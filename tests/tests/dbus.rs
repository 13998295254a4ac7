//! The D-Bus interface as clients meet it: on a private bus with the appliance's policy.

mod service;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;

use api::dbus::{
    Blob, CONTRACTS, Device1Proxy, INLINE_BYTES, Inference1Proxy, Job1Proxy, Model1Proxy, Models1Proxy, NPU_DEVICE,
    NPU_NAME, NPU_ROOT, WireTensor, model_path, seal, unseal,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rustix::fs::{MemfdFlags, memfd_create};
use service::{OnBus, PATIENCE, QUEUE, digit, golden_picture, until};
use testkit::{model, picture};
use zbus::fdo::{IntrospectableProxy, ObjectManagerProxy};
use zbus::wire::OwnedVariant;
use zbus::{Connection, Variant};

/// What a call fails with: the error's name.
fn error_name<T: std::fmt::Debug>(result: zbus::Result<T>) -> String {
    match result.unwrap_err() {
        zbus::Error::MethodError(name, ..) => name.to_string(),
        zbus::Error::FDO(error) => zbus::DBusError::name(&*error).to_string(),
        other => other.to_string(),
    }
}

async fn inference(connection: &Connection, model: &str) -> Inference1Proxy<'static> {
    Inference1Proxy::new(connection, model_path(model)).await.unwrap()
}

fn tensor(datatype: &str, shape: &[u64], data: Blob) -> WireTensor {
    (String::new(), datatype.into(), shape.into(), data.into_variant())
}

fn memfd(data: &[u8]) -> Blob {
    Blob::Memfd(seal(data).unwrap())
}

#[tokio::test]
async fn every_live_object_is_as_its_contract_says() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let models = Models1Proxy::new(&client).await.unwrap();
    let job = models.load_model("/nowhere", HashMap::new()).await.unwrap();
    let mut compared = BTreeSet::new();
    for path in [NPU_ROOT, NPU_DEVICE, model_path("mnist").as_str(), job.as_str()] {
        let proxy = IntrospectableProxy::builder(&client).destination(NPU_NAME).path(path).build().await.unwrap();
        let live = testkit::interfaces(&proxy.introspect().await.unwrap());
        for &(name, contract) in CONTRACTS {
            if let Some(live) = live.get(name) {
                assert_eq!(live, &testkit::interfaces(contract)[name], "{name} at {path}");
                compared.insert(name);
            }
        }
    }
    let expected =
        ["org.cairn.Device1", "org.cairn.Inference1", "org.cairn.Job1", "org.cairn.Model1", "org.cairn.Models1"];
    assert!(compared.iter().copied().eq(expected), "only {compared:?} were found");
}

#[tokio::test]
async fn a_model_is_loaded_by_a_job_appears_and_is_unloaded() {
    let service = OnBus::start(&[]).await;
    let client = service.client().await;
    let objects = ObjectManagerProxy::builder(&client).destination(NPU_NAME).path(NPU_ROOT).build().await.unwrap();
    let models = Models1Proxy::new(&client).await.unwrap();
    assert!(models.list_models(HashMap::new()).await.unwrap().is_empty());

    let job = models.load_model(model("mnist").to_str().unwrap(), HashMap::new()).await.unwrap();
    let job = Job1Proxy::new(&client, job).await.unwrap();
    let mut states = job.receive_state_changed().await;
    while job.state().await.unwrap() == "running" {
        tokio::time::timeout(PATIENCE, states.next()).await.unwrap().unwrap();
    }
    assert_eq!(job.state().await.unwrap(), "done", "{:?}", job.error().await);
    assert_eq!(job.progress().await.unwrap().0, 100);
    let path = job.result().await.unwrap();
    assert_eq!(path, model_path("mnist"));
    assert_eq!(models.list_models(HashMap::new()).await.unwrap(), std::slice::from_ref(&path));
    let interfaces = &objects.get_managed_objects().await.unwrap()[&path];
    assert!(interfaces.keys().any(|name| name.as_str() == "org.cairn.Inference1"), "{:?}", interfaces.keys());

    let loaded = Model1Proxy::new(&client, path.clone()).await.unwrap();
    assert_eq!(loaded.name().await.unwrap(), "mnist");
    assert_eq!(loaded.labels().await.unwrap().len(), 10);
    let report: serde_json::Value = serde_json::from_str(&loaded.report().await.unwrap()).unwrap();
    assert_eq!(report["operators"].as_array().unwrap().len(), loaded.operators().await.unwrap() as usize);

    models.unload_model("mnist", HashMap::new()).await.unwrap();
    assert!(!objects.get_managed_objects().await.unwrap().contains_key(&path));
    assert_eq!(error_name(models.unload_model("mnist", HashMap::new()).await), "org.cairn.Error.UnknownModel");
}

#[tokio::test]
async fn a_package_that_cannot_be_used_fails_its_job_with_a_reason() {
    let service = OnBus::start(&[]).await;
    let client = service.client().await;
    let models = Models1Proxy::new(&client).await.unwrap();
    let job = Job1Proxy::new(&client, models.load_model("/nowhere", HashMap::new()).await.unwrap()).await.unwrap();
    let mut states = job.receive_state_changed().await;
    while job.state().await.unwrap() == "running" {
        tokio::time::timeout(PATIENCE, states.next()).await.unwrap().unwrap();
    }
    assert_eq!(job.state().await.unwrap(), "failed");
    let (name, message) = job.error().await.unwrap();
    assert!(name.starts_with("org.cairn.Error.") && message.contains("/nowhere"), "{name}: {message}");
    // A job that has ended stays as it is.
    job.cancel(HashMap::new()).await.unwrap();
    assert_eq!(job.state().await.unwrap(), "failed");
    assert_eq!(
        error_name(models.load_model("relative", HashMap::new()).await),
        "org.freedesktop.DBus.Error.InvalidArgs"
    );
}

#[tokio::test]
async fn a_digit_is_the_same_inline_and_sealed() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    for number in 0..10 {
        let mut answers = Vec::new();
        for data in [Blob::Inline(digit(number)), memfd(&digit(number))] {
            let input = tensor("UINT8", &[1, 28, 28, 1], data);
            let (outputs, seen, details) = mnist.infer(&[input], HashMap::new()).await.unwrap();
            assert_eq!(seen[0].1, u32::try_from(number).unwrap(), "{seen:?}");
            assert_eq!(String::try_from(details["verdict"].try_clone().unwrap()).unwrap(), "trusted");
            let (name, datatype, shape, data) = &outputs[0];
            answers.push((name.clone(), datatype.clone(), shape.clone(), unseal(data, INLINE_BYTES).unwrap()));
        }
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].3.len(), 10);
    }
}

#[tokio::test]
async fn a_picture_is_answered_with_what_is_in_it() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let picture = Blob::new(golden_picture()).unwrap().into_variant();
    let (outputs, seen, _) = mnist.infer_picture(&picture, HashMap::new()).await.unwrap();
    assert!(outputs.is_empty(), "nobody asked for tensors");
    // The mean of a 9 and a 4.
    assert_eq!((seen[0].0.as_str(), seen[0].1, seen[0].3), ("4", 4, (0.0, 0.0, 1.0, 1.0)), "{seen:?}");
    let (outputs, ..) = mnist.infer_picture(&picture, HashMap::from([("outputs", Variant::from(true))])).await.unwrap();
    assert_eq!(outputs.len(), 1);
}

#[tokio::test]
async fn bad_input_has_a_name() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let good = || Blob::Inline(digit(1));
    let bytes = |bytes: &'static [u8]| Blob::Inline(Bytes::from_static(bytes));
    let invalid_tensor = "org.cairn.Error.InvalidTensor";
    for (what, input) in [
        ("a wrong shape", tensor("UINT8", &[1, 28, 28], good())),
        ("a shape that does not fit the bytes", tensor("UINT8", &[1, 28, 28, 2], good())),
        ("a shape beyond memory", tensor("UINT8", &[u64::MAX, u64::MAX], good())),
        ("a wrong type", tensor("INT8", &[1, 28, 28, 1], good())),
        ("an unknown type", tensor("UINT4", &[1, 28, 28, 1], good())),
        ("no bytes", tensor("UINT8", &[1, 28, 28, 1], bytes(b""))),
        ("more bytes than the model takes", tensor("UINT8", &[1, 28, 28, 1], memfd(&[0; 100_000]))),
        ("text for bytes", (String::new(), "UINT8".into(), vec![1], Variant::from("x").try_into().unwrap())),
    ] {
        assert_eq!(error_name(mnist.infer(&[input], HashMap::new()).await), invalid_tensor, "{what}");
    }
    assert_eq!(error_name(mnist.infer(&[], HashMap::new()).await), invalid_tensor, "no tensor");

    let jpeg = std::fs::read(picture("chelsea.jpg")).unwrap();
    for (what, bytes) in [
        ("a truncated JPEG", memfd(&jpeg[..jpeg.len() / 3])),
        ("no picture", bytes(b"not a picture")),
        ("nothing", bytes(b"")),
    ] {
        let result = mnist.infer_picture(&bytes.into_variant(), HashMap::new()).await;
        assert_eq!(error_name(result), invalid_tensor, "{what}");
    }

    let ask = async |key, value: Variant<'static>| {
        let input = tensor("UINT8", &[1, 28, 28, 1], good());
        error_name(mnist.infer(&[input], HashMap::from([(key, value)])).await)
    };
    let invalid_args = "org.freedesktop.DBus.Error.InvalidArgs";
    assert_eq!(ask("colour", Variant::from("red")).await, invalid_args);
    assert_eq!(ask("priority", Variant::from("urgent")).await, invalid_args);
    assert_eq!(ask("deadline-ms", Variant::from("soon")).await, invalid_args);
    assert_eq!(ask("deadline-ms", Variant::from(0u32)).await, "org.cairn.Error.DeadlineExceeded");

    let unknown = inference(&client, "unknown").await;
    let input = tensor("UINT8", &[1, 28, 28, 1], good());
    assert_eq!(error_name(unknown.infer(&[input], HashMap::new()).await), "org.freedesktop.DBus.Error.UnknownObject");
}

#[tokio::test]
async fn more_tensors_than_the_model_takes_are_refused_unread() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let tensors = [(); 2].map(|()| {
        let unsealed = memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
        tensor("UINT8", &[1, 28, 28, 1], Blob::Memfd(unsealed))
    });
    match mnist.infer(&tensors, HashMap::new()).await.unwrap_err() {
        zbus::Error::MethodError(name, Some(message), _) => {
            assert_eq!(name.as_str(), "org.cairn.Error.InvalidTensor");
            assert_eq!(message, "2 tensors given, model \"mnist\" takes 1");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_unsealed_memfd_is_refused() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let file = File::from(memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all_at(&digit(1), 0).unwrap();
    let input = tensor("UINT8", &[1, 28, 28, 1], Blob::Memfd(file.into()));
    match mnist.infer(&[input], HashMap::new()).await.unwrap_err() {
        zbus::Error::MethodError(name, Some(message), _) => {
            assert_eq!(name.as_str(), "org.cairn.Error.InvalidTensor");
            assert!(message.contains("not sealed"), "{message}");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_requests_with_it() {
    let service = OnBus::start(&["mnist"]).await;
    let leaver = service.client().await;
    service.gate.close();
    // The first request stands on the NPU before the others fill the queue.
    for waiting in 0..=QUEUE {
        let mnist = inference(&leaver, "mnist").await;
        let input = tensor("UINT8", &[1, 28, 28, 1], Blob::Inline(digit(1)));
        tokio::spawn(async move { mnist.infer(&[input], HashMap::new()).await });
        until("a waiting request", || service.gate.waiting() == 1 && service.engine.status().queue_depth == waiting)
            .await;
    }

    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let ask = async || {
        let input = tensor("UINT8", &[1, 28, 28, 1], Blob::Inline(digit(7)));
        mnist.infer(&[input], HashMap::new()).await
    };
    assert_eq!(error_name(ask().await), "org.cairn.Error.QueueFull");

    leaver.close().await.unwrap();
    let admitted = service.engine.status().counters.requests;
    let answer = async {
        loop {
            match ask().await {
                Err(error) => assert_eq!(error_name::<()>(Err(error)), "org.cairn.Error.QueueFull"),
                Ok(answer) => return answer,
            }
        }
    };
    let open = async {
        until("room in the queue", || service.engine.status().counters.requests > admitted).await;
        service.gate.open();
    };
    let ((_, seen, _), ()) = tokio::join!(answer, open);
    assert_eq!(seen[0].1, 7);
}

#[tokio::test]
async fn the_device_tells_what_it_counted() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let device = Device1Proxy::new(&client).await.unwrap();
    let before = device.counters().await.unwrap();
    let mnist = inference(&client, "mnist").await;
    mnist.infer(&[tensor("UINT8", &[1, 28, 28, 1], Blob::Inline(digit(3)))], HashMap::new()).await.unwrap();
    let after = device.counters().await.unwrap();
    assert_eq!(after["requests"], before["requests"] + 1);
    assert_eq!(after["trusted"], before["trusted"] + 1);
    assert_eq!((device.contexts().await.unwrap(), device.queue_capacity().await.unwrap()), (1, 2));
    assert_eq!(device.thermal_level().await.unwrap(), "normal");

    let mut levels = device.receive_thermal_level_changed().await;
    service.server.set_thermal_level(engine::ThermalLevel::Critical).await.unwrap();
    while device.thermal_level().await.unwrap() != "critical" {
        tokio::time::timeout(PATIENCE, levels.next()).await.unwrap().unwrap();
    }
    let input = tensor("UINT8", &[1, 28, 28, 1], Blob::Inline(digit(3)));
    assert_eq!(error_name(mnist.infer(&[input], HashMap::new()).await), "org.cairn.Error.ThermalLimit");
}

#[tokio::test]
async fn a_variant_of_any_type_is_no_reason_to_fall() {
    let service = OnBus::start(&["mnist"]).await;
    let client = service.client().await;
    let mnist = inference(&client, "mnist").await;
    let odd = [
        Variant::from(1u8),
        Variant::from(vec![1u16, 2]),
        Variant::from(("a", 2i64)),
        Variant::new(Variant::from(vec![0u8; 4])),
        Variant::from(HashMap::from([("k", 1u32)])),
    ];
    for value in odd {
        let value = OwnedVariant::try_from(value).unwrap();
        assert_eq!(error_name(mnist.infer_picture(&value, HashMap::new()).await), "org.cairn.Error.InvalidTensor");
    }
}
