//! Answers of Elastic Load Balancing as far as they are read (API version 2015-12-01), and the calls that list.

use dstack_units::Time;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client::{Client, Form, Service};
use crate::errors::AwsError;

/// More pages than any list has: an API that always has another one is broken.
const MAX_PAGES: usize = 1000;

/// What XML lists as `<member>`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Members<T> {
    #[serde(default = "Vec::new")]
    pub(crate) member: Vec<T>,
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self { member: Vec::new() }
    }
}

/// `<CreateLoadBalancerResponse><CreateLoadBalancerResult>…`: what a call of the query protocol brings stands in a wrapper.
macro_rules! wrapped {
    ($name:ident, $wrapper:literal, $result:ident { $($field:ident: $kind:ty = $element:literal),+ $(,)? }) => {
        #[derive(Debug, Deserialize)]
        struct $name {
            #[serde(rename = $wrapper)]
            result: $result,
        }

        #[derive(Debug, Deserialize)]
        struct $result {
            $(#[serde(rename = $element, default)] $field: $kind,)+
        }
    };
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Balancer {
    pub(crate) load_balancer_arn: String,
    pub(crate) load_balancer_name: String,
    #[serde(rename = "DNSName", default)]
    pub(crate) dns_name: String,
    pub(crate) created_time: Option<Time>,
    #[serde(default)]
    pub(crate) state: BalancerState,
    #[serde(default)]
    pub(crate) availability_zones: Members<Zone>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Zone {
    #[serde(default)]
    pub(crate) zone_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BalancerState {
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TargetGroup {
    pub(crate) target_group_arn: String,
    pub(crate) target_group_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listener {
    pub(crate) listener_arn: String,
    #[serde(default)]
    pub(crate) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TargetHealthOf {
    pub(crate) target: Target,
    pub(crate) target_health: TargetHealth,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Target {
    pub(crate) id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TargetHealth {
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) description: String,
}

/// An answer that is not read.
#[derive(Debug, Deserialize)]
pub(crate) struct Nothing {}

/// A page of a list, and what the next one is asked for with.
trait MarkedPage: DeserializeOwned {
    type Item;

    fn into_items(self) -> (Vec<Self::Item>, Option<String>);
}

macro_rules! marked_page {
    ($name:ident, $item:ty) => {
        impl MarkedPage for $name {
            type Item = $item;

            fn into_items(self) -> (Vec<$item>, Option<String>) {
                (self.result.items.member, self.result.next)
            }
        }
    };
}

marked_page!(ListedBalancers, Balancer);
marked_page!(ListedGroups, TargetGroup);
marked_page!(ListedListeners, Listener);

wrapped!(CreatedBalancers, "CreateLoadBalancerResult", CreatedBalancersResult {
    items: Members<Balancer> = "LoadBalancers",
});
wrapped!(ListedBalancers, "DescribeLoadBalancersResult", ListedBalancersResult {
    items: Members<Balancer> = "LoadBalancers",
    next: Option<String> = "NextMarker",
});
wrapped!(CreatedGroups, "CreateTargetGroupResult", CreatedGroupsResult {
    items: Members<TargetGroup> = "TargetGroups",
});
wrapped!(ListedGroups, "DescribeTargetGroupsResult", ListedGroupsResult {
    items: Members<TargetGroup> = "TargetGroups",
    next: Option<String> = "NextMarker",
});
wrapped!(CreatedListeners, "CreateListenerResult", CreatedListenersResult {
    items: Members<Listener> = "Listeners",
});
wrapped!(ListedListeners, "DescribeListenersResult", ListedListenersResult {
    items: Members<Listener> = "Listeners",
    next: Option<String> = "NextMarker",
});
wrapped!(ListedHealth, "DescribeTargetHealthResult", ListedHealthResult {
    items: Members<TargetHealthOf> = "TargetHealthDescriptions",
});

/// A call that makes one thing brings a list of one.
fn only<T>(items: Members<T>, call: &str) -> Result<T, AwsError> {
    items
        .member
        .into_iter()
        .next()
        .ok_or_else(|| AwsError::malformed(call, "the list is empty"))
}

impl Client {
    pub(crate) async fn create_balancer(&self, region: &str, form: Form) -> Result<Balancer, AwsError> {
        let made: CreatedBalancers = self.change_elb(region, form).await?;
        only(made.result.items, "elasticloadbalancing:CreateLoadBalancer")
    }

    pub(crate) async fn create_target_group(
        &self,
        region: &str,
        form: Form,
    ) -> Result<TargetGroup, AwsError> {
        let made: CreatedGroups = self.change_elb(region, form).await?;
        only(made.result.items, "elasticloadbalancing:CreateTargetGroup")
    }

    pub(crate) async fn create_listener(&self, region: &str, form: Form) -> Result<Listener, AwsError> {
        let made: CreatedListeners = self.change_elb(region, form).await?;
        only(made.result.items, "elasticloadbalancing:CreateListener")
    }

    /// The load balancers of a region; those that are asked for by name or ARN and are not there are no error.
    pub(crate) async fn balancers(&self, region: &str, form: Form) -> Result<Vec<Balancer>, AwsError> {
        let listed = self.list_elb::<ListedBalancers>(region, form).await;
        absent_is_none(listed, "LoadBalancerNotFound")
    }

    /// As [`Client::balancers`].
    pub(crate) async fn target_groups(&self, region: &str, form: Form) -> Result<Vec<TargetGroup>, AwsError> {
        let listed = self.list_elb::<ListedGroups>(region, form).await;
        absent_is_none(listed, "TargetGroupNotFound")
    }

    /// Of a load balancer.
    pub(crate) async fn listeners(&self, region: &str, balancer: &str) -> Result<Vec<Listener>, AwsError> {
        let form = Form::new("DescribeListeners").with("LoadBalancerArn", balancer);
        self.list_elb::<ListedListeners>(region, form).await
    }

    /// The targets of a group, and how they are.
    pub(crate) async fn target_health(
        &self,
        region: &str,
        group: &str,
    ) -> Result<Vec<TargetHealthOf>, AwsError> {
        let form = Form::new("DescribeTargetHealth").with("TargetGroupArn", group);
        let listed: ListedHealth = self.read(Service::Elb, region, form).await?;
        Ok(listed.result.items.member)
    }

    async fn list_elb<P: MarkedPage>(&self, region: &str, form: Form) -> Result<Vec<P::Item>, AwsError> {
        let (mut all, mut next) = (Vec::new(), None::<String>);
        for _ in 0..MAX_PAGES {
            let form = form.clone().with_some("Marker", next.as_deref());
            let page: P = self.read(Service::Elb, region, form).await?;
            let (items, marker) = page.into_items();
            all.extend(items);
            match marker.filter(|marker| !marker.is_empty()) {
                Some(marker) => next = Some(marker),
                None => return Ok(all),
            }
        }
        Err(AwsError::malformed(
            "elasticloadbalancing",
            &format!("a list of more than {MAX_PAGES} pages"),
        ))
    }
}

fn absent_is_none<T>(listed: Result<Vec<T>, AwsError>, absent: &str) -> Result<Vec<T>, AwsError> {
    match listed {
        Err(error) if error.is(&[absent]) => Ok(Vec::new()),
        listed => listed,
    }
}
