//! Home Assistant's device discovery: one retained message makes the device and its sensors appear.

use serde_json::{Value, json};

use super::{OFFLINE, ONLINE, Topics};

/// Payload of [`Topics::home_assistant_health`]. `version` is that of the daemon. Names the same device as [`discovery`],
/// so that its sensors appear beside the others.
pub fn health_discovery(topics: &Topics, version: &str) -> Value {
    let id = topics.home_assistant_id();
    let (state, summary) = (topics.health_state(), topics.health_summary());
    let availability = json!([{"topic": state, "payload_available": ONLINE, "payload_not_available": OFFLINE}]);
    let component = |key: &str, platform: &str, name: &str, topic: &str, extra: Value| {
        let mut component = json!({
            "p": platform,
            "name": name,
            "unique_id": format!("{id}_health_{key}"),
            "state_topic": topic,
            "availability": availability,
            "entity_category": "diagnostic",
        });
        let extra = extra.as_object().into_iter().flatten();
        let members = component.as_object_mut().expect("an object was built");
        members.extend(extra.map(|(key, value)| (key.clone(), value.clone())));
        (key.to_owned(), component)
    };
    let problem = json!({"device_class": "problem", "payload_on": "on", "payload_off": "off",
        "value_template": "{{ 'off' if value_json.state == 'healthy' else 'on' }}", "json_attributes_topic": summary});
    let celsius = json!({"device_class": "temperature", "unit_of_measurement": "°C", "state_class": "measurement",
        "value_template": "{{ value_json.gauges['celsius.npu-thermal'] | default(none) }}"});
    let incidents = json!({"state_class": "total_increasing", "value_template": "{{ value_json.counters.incidents }}"});
    let components: serde_json::Map<_, _> = [
        component("problem", "binary_sensor", "Problem", &summary, problem),
        component(
            "reason",
            "sensor",
            "Reason",
            &summary,
            json!({
            "value_template": "{{ (value_json.reasons | first | default('none'))[:255] }}"}),
        ),
        component("celsius", "sensor", "NPU temperature", &summary, celsius),
        component("incidents", "sensor", "Incidents", &summary, incidents),
        component(
            "last_incident",
            "sensor",
            "Last incident",
            &topics.health_incident(),
            json!({
            "value_template": "{{ value_json.class }}", "json_attributes_topic": topics.health_incident()}),
        ),
    ]
    .into_iter()
    .collect();
    json!({
        "dev": {"ids": [id], "name": format!("Cairn {}", topics.device()), "mf": "Cairn", "mdl": "NPU inference"},
        "o": {"name": "cairn", "sw": version},
        "cmps": components,
    })
}

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
    fn health_sensors_belong_to_the_same_device_and_have_names_of_their_own() {
        let topics = Topics::new("d.1").unwrap();
        let (inference, health) = (discovery(&topics, "1"), health_discovery(&topics, "1"));
        assert_eq!(inference["dev"], health["dev"]);
        let ids = |payload: &Value| -> Vec<String> {
            let components = payload["cmps"].as_object().unwrap().values();
            components.map(|component| component["unique_id"].as_str().unwrap().to_owned()).collect()
        };
        let (inference, health) = (ids(&inference), ids(&health));
        assert_eq!(health.len(), 5);
        assert!(health.iter().all(|id| !inference.contains(id)));
    }

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
