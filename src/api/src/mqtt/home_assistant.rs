//! Home Assistant's device discovery: one retained message makes the device and its sensors appear.

use serde_json::{Value, json};

use super::{OFFLINE, ONLINE, Topics};

/// Payload of [`Topics::home_assistant`]. `version` is that of the daemon.
pub fn discovery(topics: &Topics, version: &str) -> Value {
    let id = topics.home_assistant_id();
    let (state, metrics) = (topics.state(), topics.metrics());
    let sensor = |key: &str, name: &str, extra: Value| {
        let mut component = json!({
            "p": "sensor",
            "name": name,
            "unique_id": format!("{id}_{key}"),
            "state_topic": metrics,
            "value_template": format!("{{{{ value_json.{key} | default(none) }}}}"),
        });
        let extra = extra.as_object().into_iter().flatten();
        let members = component.as_object_mut().expect("an object was built");
        members.extend(extra.map(|(key, value)| (key.clone(), value.clone())));
        (key.to_owned(), component)
    };
    let mut components: serde_json::Map<_, _> = [
        sensor("inferences", "Inferences", json!({"state_class": "total_increasing"})),
        sensor("untrusted", "Untrusted results", json!({"state_class": "total_increasing"})),
        sensor(
            "latency_ms",
            "Latency",
            json!({"unit_of_measurement": "ms", "device_class": "duration", "state_class": "measurement"}),
        ),
        sensor("queue_depth", "Queue", json!({"state_class": "measurement"})),
        sensor("thermal_level", "Thermal level", json!({"entity_category": "diagnostic"})),
    ]
    .into_iter()
    .collect();
    // The state sensor has no availability: it is the one that says "not available".
    components.insert(
        "state".into(),
        json!({
            "p": "binary_sensor",
            "name": "Serving",
            "unique_id": format!("{id}_state"),
            "device_class": "connectivity",
            "state_topic": state,
            "payload_on": ONLINE,
            "payload_off": OFFLINE,
        }),
    );
    for (key, component) in &mut components {
        if key != "state" {
            component["availability"] =
                json!([{"topic": state, "payload_available": ONLINE, "payload_not_available": OFFLINE}]);
        }
    }
    json!({
        "dev": {"ids": [id], "name": format!("Cairn {}", topics.device()), "mf": "Cairn", "mdl": "NPU inference"},
        "o": {"name": "cairn", "sw": version},
        "cmps": components,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_has_what_home_assistant_requires() {
        let topics = Topics::new("d.1").unwrap();
        let payload = discovery(&topics, "1.2.3");
        assert_eq!(payload["dev"]["ids"][0], "cairn_d_1");
        assert_eq!(payload["o"]["name"], "cairn");
        let components = payload["cmps"].as_object().unwrap();
        assert_eq!(components.len(), 6);
        for (key, component) in components {
            for member in ["p", "unique_id", "state_topic"] {
                assert!(component[member].is_string(), "{key} has no {member}");
            }
            assert_eq!(component.get("availability").is_none(), key == "state");
        }
    }
}
