//! Disks that a simulated cloud attaches to its machines, each to one at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use dstack_compute::{
    Attachment, AttachmentSite, Call, ComputeError, Known, LISTED_WITHIN, Lifecycle, Removal, Sign, Step,
};
use dstack_model::volumes::VolumeAttachmentData;
use dstack_units::InstanceId;
use tokio::time::Instant;

use super::{Clouds, State, address};
use crate::hosts::Hosts;

/// Pause before the cloud is asked again whether it is done.
const AGAIN: Duration = Duration::from_secs(3);

/// What is attached, by id of the disk in the cloud, and how the cloud behaves.
#[derive(Debug, Default)]
pub(super) struct Attached {
    disks: BTreeMap<String, Plug>,
    /// What a real cloud would have refused, and nobody may ask for.
    wrong: Vec<String>,
    /// How long it takes to attach a disk, and to detach one.
    takes: Duration,
    /// Why nothing is attached.
    refusal: Option<String>,
    /// Nothing is detached unless it is forced.
    hangs: bool,
    /// How often a disk was attached.
    made: usize,
    /// How often one was taken by force.
    forced: usize,
}

/// A disk at a machine.
#[derive(Debug, Clone)]
struct Plug {
    instance: InstanceId,
    device: String,
    listed_at: Instant,
    /// When the machine has it.
    ready_at: Instant,
    /// When the machine does not have it any more.
    leaves_at: Option<Instant>,
}

impl Clouds {
    /// How long it takes to attach a disk, and to detach one.
    pub fn attaching_takes(&self, takes: Duration) {
        self.change(|state| state.attached.takes = takes);
    }

    /// Nothing is attached from now on, for this reason; `None`: again.
    pub fn refuse_attachments(&self, why: Option<&str>) {
        self.change(|state| state.attached.refusal = why.map(str::to_owned));
    }

    /// From now on nothing is detached unless it is forced, or again.
    pub fn detaching_hangs(&self, hangs: bool) {
        self.change(|state| state.attached.hangs = hangs);
    }

    /// What is attached: ids of disks, and the instances whose machines have them.
    pub fn attached(&self) -> Vec<(String, InstanceId)> {
        let mut state = self.lock();
        settle(&mut state, &self.hosts);
        let disks = state.attached.disks.iter();
        disks.map(|(id, plug)| (id.clone(), plug.instance)).collect()
    }

    /// How often a disk was attached, and how often one was taken by force.
    pub fn attachments_made(&self) -> (usize, usize) {
        let state = self.lock();
        (state.attached.made, state.attached.forced)
    }

    /// What was asked for that nobody may ask for.
    pub fn attached_wrongly(&self) -> Vec<String> {
        self.lock().attached.wrong.clone()
    }

    async fn attach_disk(&self, site: &AttachmentSite) -> Result<String, ComputeError> {
        let (disk, hostname) = (site.volume.volume_id.clone(), site.machine.hostname.clone());
        let hosts = self.hosts.clone();
        self.order(move |state| {
            settle(state, &hosts);
            if let Some(why) = &state.attached.refusal {
                return Err(ComputeError::Refused(why.clone()));
            }
            let instance = instance_at(state, hostname.as_deref());
            let instance =
                instance.ok_or_else(|| ComputeError::Refused("there is no such machine".to_owned()))?;
            if let Some(plug) = state.attached.disks.get(&disk) {
                let wrong = match plug.instance == instance {
                    true => format!("{disk} was attached twice to {instance}"),
                    false => format!("{disk} was attached to {instance} while {} had it", plug.instance),
                };
                state.attached.wrong.push(wrong);
                return Err(ComputeError::Refused("VolumeInUse".to_owned()));
            }
            let device = format!("/dev/sd{}", char::from(b'f' + (state.attached.made % 10) as u8));
            let now = Instant::now();
            let plug = Plug {
                instance,
                device: device.clone(),
                listed_at: now + state.delays.unlisted,
                ready_at: now + state.attached.takes,
                leaves_at: None,
            };
            state.attached.made += 1;
            state.attached.disks.insert(disk, plug);
            Ok(device)
        })
        .await
    }

    /// Whether the machine has it, or will; and its device.
    async fn find_attached(&self, site: &AttachmentSite) -> Result<Option<Plug>, ComputeError> {
        let (disk, hostname) = (site.volume.volume_id.clone(), site.machine.hostname.clone());
        let hosts = self.hosts.clone();
        self.ask(move |state| {
            settle(state, &hosts);
            let instance = instance_at(state, hostname.as_deref());
            let plug = state.attached.disks.get(&disk);
            let its = plug.filter(|plug| Some(plug.instance) == instance && plug.listed_at <= Instant::now());
            Ok(its.cloned())
        })
        .await
    }

    async fn detach_disk(&self, site: &AttachmentSite) -> Result<Removal, ComputeError> {
        let (disk, hostname) = (site.volume.volume_id.clone(), site.machine.hostname.clone());
        let (hosts, force) = (self.hosts.clone(), site.force);
        self.order(move |state| {
            settle(state, &hosts);
            let instance = instance_at(state, hostname.as_deref());
            let Attached {
                disks,
                takes,
                hangs,
                forced,
                ..
            } = &mut state.attached;
            let Some(plug) = disks
                .get_mut(&disk)
                .filter(|plug| Some(plug.instance) == instance)
            else {
                return Ok(Removal::Gone);
            };
            let is_held = *hangs || hosts.is_mounted(&plug.instance.to_string(), &disk);
            if plug.leaves_at.is_none() && (force || !is_held) {
                *forced += usize::from(is_held);
                plug.leaves_at = Some(Instant::now() + *takes);
                hosts.unmount(&disk, is_held);
            }
            Ok(Removal::Underway { again: AGAIN })
        })
        .await
    }
}

/// Machines have, and do not have any more, what they have by now.
pub(super) fn settle(state: &mut State, hosts: &Hosts) {
    let now = Instant::now();
    let State {
        attached, machines, ..
    } = state;
    attached.disks.retain(|disk, plug| {
        let machine = plug.instance.to_string();
        let is_there = machines.iter().any(|machine| machine.instance == plug.instance);
        let stays = is_there && plug.leaves_at.is_none_or(|at| at > now);
        if stays && plug.ready_at <= now {
            hosts.plug(&machine, disk, &plug.device);
        }
        if !stays {
            hosts.unplug(&machine, disk, !is_there);
        }
        stays
    });
}

fn instance_at(state: &State, hostname: Option<&str>) -> Option<InstanceId> {
    let mut numbers = state.numbers.iter();
    let (instance, _) = numbers.find(|(_, number)| Some(address(**number).as_str()) == hostname)?;
    let mut machines = state.machines.iter();
    machines
        .find(|machine| machine.instance == *instance)
        .map(|machine| machine.instance)
}

#[async_trait]
impl Lifecycle<Attachment> for Clouds {
    async fn ensure(
        &self,
        want: &AttachmentSite,
        call: &Call<'_>,
    ) -> Result<Step<VolumeAttachmentData>, ComputeError> {
        let find = || async move { Ok(self.find_attached(want).await?.map(|plug| plug.device)) };
        let attach = || self.attach_disk(want);
        call.make("attachment", LISTED_WITHIN, attach, find).await?;
        let found = self.find_attached(want).await?;
        let ready = found.filter(|plug| plug.ready_at <= Instant::now());
        Ok(match ready {
            Some(plug) => Step::Ready(VolumeAttachmentData {
                device_name: Some(plug.device),
            }),
            None => Step::Underway {
                seen: None,
                doing: "the disk to be attached".to_owned(),
                again: AGAIN,
            },
        })
    }

    async fn look(
        &self,
        known: &[Known<Attachment>],
    ) -> Result<Vec<Option<Sign<VolumeAttachmentData>>>, ComputeError> {
        Ok(known.iter().map(|_| Some(Sign::Well)).collect())
    }

    async fn remove(&self, known: &Known<Attachment>, call: &Call<'_>) -> Result<Removal, ComputeError> {
        let site = &known.site;
        let find = || async move { Ok(self.find_attached(site).await?.map(|plug| plug.device)) };
        let made = known
            .place
            .as_ref()
            .map(|place| place.device_name.clone().unwrap_or_default());
        call.unmake("attachment", made, LISTED_WITHIN, find, |_| {
            self.detach_disk(site)
        })
        .await
    }
}
