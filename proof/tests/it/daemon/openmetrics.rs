//! A reader of the OpenMetrics text format that is strict about what the specification demands.

use std::collections::{BTreeMap, BTreeSet};

/// One family of metrics.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub unit: String,
    pub help: String,
    /// By the sample's name with its labels, as written.
    pub samples: BTreeMap<String, f64>,
}

/// Reads an exposition, by the families' names. What breaks a rule is told.
pub fn parse(text: &str) -> Result<BTreeMap<String, Family>, String> {
    let lines = text.strip_suffix("# EOF\n").ok_or("does not end in # EOF")?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in lines.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if name != current && families.contains_key(name) {
                return Err(format!("{name} is in two places"));
            }
            current = name.to_owned();
            let family = families.entry(current.clone()).or_default();
            if !family.samples.is_empty() {
                return Err(format!("{line} comes after samples"));
            }
            match what {
                "TYPE" => family.kind = rest.to_owned(),
                "UNIT" => family.unit = rest.to_owned(),
                "HELP" => family.help = rest.to_owned(),
                _ => return Err(format!("{line} is no metadata")),
            }
        } else {
            let family = families.get_mut(&current).ok_or_else(|| format!("{line} has no family"))?;
            let (name, value) = sample(line, &current, &family.kind)?;
            if family.samples.insert(name, value).is_some() {
                return Err(format!("{line} is there twice"));
            }
        }
    }
    families.iter().try_for_each(|(name, family)| check(name, family))?;
    Ok(families)
}

fn sample(line: &str, family: &str, kind: &str) -> Result<(String, f64), String> {
    let (series, value) = line.rsplit_once(' ').ok_or_else(|| format!("{line} has no value"))?;
    let value: f64 = value.parse().map_err(|_| format!("{line}: no number"))?;
    let name = series.split('{').next().unwrap_or_default();
    let suffix = name.strip_prefix(family).ok_or_else(|| format!("{line} is not of {family}"))?;
    let allowed: &[&str] = match kind {
        "counter" => &["_total", "_created"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_count", "_sum", "_created"],
        _ => return Err(format!("{family} is of kind {kind:?}")),
    };
    if !allowed.contains(&suffix) {
        return Err(format!("{line}: {suffix:?} is not for a {kind}"));
    }
    if kind != "gauge" && (value < 0.0 || value.is_nan()) {
        return Err(format!("{line} is negative"));
    }
    Ok((series.to_owned(), value))
}

fn check(name: &str, family: &Family) -> Result<(), String> {
    if family.kind.is_empty() || family.help.is_empty() {
        return Err(format!("{name} lacks its type or its help"));
    }
    if !family.unit.is_empty() && !name.ends_with(&format!("_{}", family.unit)) {
        return Err(format!("{name} does not end in its unit {}", family.unit));
    }
    if family.kind == "histogram" {
        for (series, count) in family.samples.iter().filter(|(series, _)| series.contains("_count")) {
            let last = series.replace("_count", "_bucket").replace('}', ",le=\"+Inf\"}");
            // Labels may stand in another order.
            let labels: BTreeSet<&str> = last.split(['{', '}', ',']).collect();
            let same = |(bucket, _): &(&String, &f64)| bucket.split(['{', '}', ',']).collect::<BTreeSet<_>>() == labels;
            match family.samples.iter().find(same) {
                Some((_, infinite)) if infinite == count => {}
                found => return Err(format!("{series} is {count}, and its last bucket is {found:?}")),
            }
        }
    }
    Ok(())
}

#[test]
fn what_breaks_a_rule_is_told() {
    let good = "# HELP a_total x.\n";
    assert!(parse(good).is_err(), "without an end");
    let counter = "# HELP a x.\n# TYPE a counter\na_total{r=\"1\"} 1\n";
    assert!(parse(&format!("{counter}# EOF\n")).is_ok());
    for bad in [
        "a_total{r=\"1\"} 2\n",
        "a 2\n",
        "b_total 2\n",
        "a_total{r=\"2\"} -1\n",
        "a_total{r=\"2\"} x\n",
        "# TYPE b unknown\nb 1\n",
        "# HELP b x\n",
        "# HELP b x\n# TYPE b gauge\n# UNIT b seconds\nb 1\n",
        "# HELP b x\n# TYPE b histogram\nb_count 1\nb_sum 1\nb_bucket{le=\"+Inf\"} 2\n",
    ] {
        assert!(parse(&format!("{counter}{bad}# EOF\n")).is_err(), "{bad}");
    }
}
