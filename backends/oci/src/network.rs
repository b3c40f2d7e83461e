//! The network of machines of a project in a region. It has no costs, is made with the first machine, and stays. Names and rules are those
//! of dstack 0.22.5.

use dstack_compute::ComputeError;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Oci;
use crate::client::{Service, Thing, told};

/// Of all networks.
pub(crate) const CIDR: &str = "10.0.0.0/16";

/// Where a machine is put.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) subnet: String,
    pub(crate) security_group: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default)]
    id: String,
    direction: String,
    protocol: String,
    #[serde(default)]
    source: Option<String>,
}

impl Oci {
    /// Found, or made.
    pub(crate) async fn network(&self, region: &str, project: &str) -> Result<Network, ComputeError> {
        let key = format!("{region} {project}");
        // One at a time, as OCI takes the same name twice.
        let mut networks = self.networks.lock().await;
        if let Some(network) = networks.get(&key) {
            return Ok(network.clone());
        }
        let name = |part: &str| format!("dstack-{project}-default-{part}");
        let (subnet, vcn) = match self.find(region, "subnets", &name("subnet"), &[]).await? {
            Some(Thing {
                id,
                vcn_id: Some(vcn),
                ..
            }) => (id, vcn),
            _ => self.make_subnet(region, &name).await?,
        };
        let group_name = name("security-group");
        let in_vcn = [("vcnId", vcn.as_str())];
        let group = match self
            .find(region, "networkSecurityGroups", &group_name, &in_vcn)
            .await?
        {
            Some(group) => group.id,
            None => {
                let more = json!({"vcnId": vcn});
                self.make(region, "networkSecurityGroups", &group_name, more)
                    .await?
                    .id
            }
        };
        self.set_rules(region, &group).await?;
        let network = Network {
            subnet,
            security_group: group,
        };
        networks.insert(key, network.clone());
        Ok(network)
    }

    /// A subnet whose machines reach the internet, and its network.
    async fn make_subnet(
        &self,
        region: &str,
        name: &(impl Fn(&str) -> String + Sync),
    ) -> Result<(String, String), ComputeError> {
        let vcn = match self.find(region, "vcns", &name("vcn"), &[]).await? {
            Some(vcn) => vcn,
            None => {
                self.make(region, "vcns", &name("vcn"), json!({"cidrBlocks": [CIDR]}))
                    .await?
            }
        };
        let gateway_name = name("internet-gateway");
        let in_vcn = [("vcnId", vcn.id.as_str())];
        let gateway = match self
            .find(region, "internetGateways", &gateway_name, &in_vcn)
            .await?
        {
            Some(gateway) => gateway,
            None => {
                let more = json!({"vcnId": vcn.id, "isEnabled": true});
                self.make(region, "internetGateways", &gateway_name, more).await?
            }
        };
        // A subnet without a route would never be mended.
        let table = vcn.default_route_table_id.as_ref().ok_or_else(|| {
            ComputeError::NotReady(format!(
                "OCI does not tell the route table of the network {}",
                vcn.id
            ))
        })?;
        let rule = json!({"destination": "0.0.0.0/0", "destinationType": "CIDR_BLOCK", "networkEntityId": gateway.id});
        let path = format!("routeTables/{table}");
        let routed = self
            .client
            .put(region, &path, &json!({"routeRules": [rule]}))
            .await;
        told(routed)?;
        let more = json!({"vcnId": vcn.id, "cidrBlock": CIDR});
        let subnet = self.make(region, "subnets", &name("subnet"), more).await?;
        Ok((subnet.id, vcn.id))
    }

    async fn find(
        &self,
        region: &str,
        path: &str,
        name: &str,
        more: &[(&str, &str)],
    ) -> Result<Option<Thing>, ComputeError> {
        let mut query = vec![
            ("compartmentId", self.compartment.as_str()),
            ("displayName", name),
        ];
        query.extend(more);
        let found = told(
            self.client
                .list::<Thing>(Service::Core, region, path, &query)
                .await,
        )?;
        let is_usable =
            |thing: &Thing| !matches!(thing.lifecycle_state.as_str(), "TERMINATING" | "TERMINATED");
        Ok(found.into_iter().find(is_usable))
    }

    async fn make(&self, region: &str, path: &str, name: &str, more: Value) -> Result<Thing, ComputeError> {
        let mut ask = json!({"compartmentId": self.compartment, "displayName": name});
        if let (Some(fields), Value::Object(more)) = (ask.as_object_mut(), more) {
            fields.extend(more);
        }
        told(self.client.post(Service::Core, region, path, &ask).await)
    }

    /// Machines of the group reach each other, and nothing else is added to what the subnet's own list allows, which is SSH.
    async fn set_rules(&self, region: &str, group: &str) -> Result<(), ComputeError> {
        let path = |action: &str| format!("networkSecurityGroups/{group}/{action}");
        let rules = told(
            self.client
                .list::<Rule>(Service::Core, region, &path("securityRules"), &[])
                .await,
        )?;
        let is_wanted = |rule: &Rule| {
            rule.direction == "INGRESS" && rule.protocol == "all" && rule.source.as_deref() == Some(group)
        };
        if !rules.iter().any(is_wanted) {
            let rule = json!({"direction": "INGRESS", "protocol": "all", "source": group,
                "sourceType": "NETWORK_SECURITY_GROUP", "isStateless": false,
                "description": "Allow all traffic within this security group"});
            let ask = json!({"securityRules": [rule]});
            told(
                self.client
                    .post::<Value>(Service::Core, region, &path("actions/addSecurityRules"), &ask)
                    .await,
            )?;
        }
        let others: Vec<&str> = rules
            .iter()
            .filter(|rule| !is_wanted(rule))
            .map(|rule| rule.id.as_str())
            .collect();
        // So many at once (found by dstack 0.22.5).
        for some in others.chunks(25) {
            let ask = json!({"securityRuleIds": some});
            told(
                self.client
                    .post::<Value>(Service::Core, region, &path("actions/removeSecurityRules"), &ask)
                    .await,
            )?;
        }
        Ok(())
    }
}
