//! Roll-outs in which the new deployment stands beside the old one: by shares of the requests, or all at once.

use std::collections::BTreeSet;

use dstack_plan::services::rollout::judge::{Answered, Answers};
use dstack_plan::services::rollout::state::{Ask, Phase};
use dstack_units::JobId;

use super::*;

fn rolled_out(replicas: i64, command: &str, rollout: &Value) -> Value {
    let mut service = service(replicas, command);
    service["rollout"] = rollout.clone();
    service
}

fn canary(command: &str) -> Value {
    let rollout = json!({"strategy": "canary", "duration": "2m", "max_error_rate": "5%"});
    rolled_out(2, command, &rollout)
}

fn green(command: &str, switch: &str) -> Value {
    let rollout = json!({"strategy": "blue_green", "switch": switch, "keep": "5m"});
    rolled_out(2, command, &rollout)
}

fn phase(world: &World, run: &RunRow) -> Option<Phase> {
    row(world, run)
        .rollout
        .as_deref()
        .map(|rollout| rollout.phase.clone())
}

async fn until_phase(world: &World, run: &RunRow, wanted: &Phase) {
    world
        .until("the roll-out comes so far", 10 * MINUTE, |world| {
            phase(world, run).as_ref() == Some(wanted)
        })
        .await
        .unwrap();
}

fn why_back(world: &World, run: &RunRow) -> Option<String> {
    match phase(world, run)? {
        Phase::RolledBack(reason) => Some(reason),
        _ => None,
    }
}

async fn until_back(world: &World, run: &RunRow) -> String {
    world
        .found("it is rolled back", 20 * MINUTE, |world| why_back(world, run))
        .await
        .unwrap()
}

/// As far as those say who have said so lately.
const fn partly_answered(requests: u64, failed: u64) -> Option<Answered> {
    match answered(requests, failed) {
        Some(Answered { new, old }) => Some(Answered {
            new: Answers {
                is_partial: true,
                ..new
            },
            old,
        }),
        None => None,
    }
}

const fn answered(requests: u64, failed: u64) -> Option<Answered> {
    let new = Answers {
        requests,
        failed,
        p95_seconds: Some(0.1),
        p95_over_seconds: 0.05,
        is_partial: false,
    };
    Some(Answered { new, old: new })
}

fn ids<'a>(jobs: impl IntoIterator<Item = &'a JobRow>) -> BTreeSet<JobId> {
    jobs.into_iter().map(|job| job.id).collect()
}

/// Those of the old deployment that get requests.
fn old_ones(jobs: &[JobRow]) -> Vec<&JobRow> {
    jobs.iter()
        .filter(|job| job.registered && !is_second(job))
        .collect()
}

/// No healthy replica of the old deployment has ended before new ones have replaced it, which they do once they have shown what they
/// are good for.
fn nothing_lost(world: &World, run: &RunRow) -> impl Fn(&[JobRow]) -> bool {
    move |jobs| {
        let run = row(world, run);
        let unproven = run
            .rollout_under_way()
            .filter(|rollout| rollout.phase.is_unproven());
        let counts = |job: &&JobRow| unproven.is_none_or(|rollout| job.deployment_num < rollout.deployment);
        let ready = jobs.iter().filter(|job| job.registered);
        ready.filter(counts).count() >= 2
    }
}

/// Whether the replicas that there were at first go on alone, as they were.
fn is_as_before(world: &World, run: &RunRow, first: &BTreeSet<JobId>) -> bool {
    let now = jobs(world, run);
    let lives = |job: &&JobRow| !job.status().is_finished();
    ids(now.iter().filter(lives)) == *first && !now.iter().filter(lives).any(is_second)
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_does_well_is_followed_by_the_others() {
    let (world, engine, run) = started(601, 2).await;
    let first = ids(&running(&world, &run));
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let now = running(&world, &run);
    assert_eq!(
        (now.len(), ids(old_ones(&now))),
        (3, first),
        "beside all old ones"
    );
    let says_so = |world: &World| {
        let waits = row(world, &run).waiting_for().map(ToString::to_string);
        waits.is_some_and(|text| text.contains("the new replicas are watched"))
    };
    world
        .until("it says what it waits for", MINUTE, says_so)
        .await
        .unwrap();
    // Nobody knows what it has answered: it is watched on.
    world.pass(10 * MINUTE).await;
    assert_eq!(phase(&world, &run), Some(Phase::Watching));
    world.services.answered(run.id, answered(100, 5));
    let all_new = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(is_second);
    until(&world, &run, all_new, nothing_lost(&world, &run)).await;
    assert_eq!(phase(&world, &run), None);
    assert_eq!(row(&world, &run).rollout_from, None);
}

#[tokio::test(start_paused = true)]
async fn a_canary_beyond_its_bounds_is_rolled_back_and_costs_nothing() {
    let (world, engine, run) = started(602, 2).await;
    let first = ids(&running(&world, &run));
    let before = row(&world, &run).run_spec;
    world.services.answered(run.id, answered(19, 19));
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    world.pass(MINUTE).await;
    assert_eq!(phase(&world, &run), Some(Phase::Watching), "too few answers");
    world.services.answered(run.id, answered(40, 10));
    let reason = until_back(&world, &run).await;
    assert_eq!(
        reason,
        "10 of 40 answers failed (25.0%), and `max_error_rate` is 5%"
    );
    world
        .until("the canary is gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
    let after = row(&world, &run);
    assert_eq!((&after.run_spec, after.deployment_num), (&before, 2));
    assert!(
        jobs(&world, &run)
            .iter()
            .filter(|job| !is_second(job))
            .all(|job| job.deployment_num == 2)
    );
    let canary = jobs(&world, &run).into_iter().find(is_second).unwrap();
    assert!(
        canary
            .termination_reason_message()
            .unwrap()
            .contains("10 of 40 answers failed")
    );
    let told = world
        .store
        .tables()
        .events
        .iter()
        .any(|event| event.message.contains(&reason));
    assert!(told, "an event says why");
    assert_eq!(invariants::always(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn new_replicas_that_fail_are_rolled_back_before_they_get_requests() {
    for (seed, applied) in [(603, canary("v2")), (604, green("v2", "auto"))] {
        let (world, engine, run) = started(seed, 2).await;
        let first = ids(&running(&world, &run));
        world.hosts.script("web", CRASHES);
        world.update(&engine, &run, &applied).await.unwrap();
        let reason = until_back(&world, &run).await;
        assert!(reason.contains("failed (container_exited_with_error"), "{reason}");
        let as_before = |world: &World| is_as_before(world, &run, &first);
        world
            .until("the old ones are alone", 5 * MINUTE, as_before)
            .await
            .unwrap();
        world
            .throughout("and stay so", 10 * MINUTE, as_before)
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn green_replicas_get_all_requests_at_once_and_blue_ones_stay_for_a_while() {
    let (world, engine, run) = started(605, 2).await;
    let first = ids(&running(&world, &run));
    world.update(&engine, &run, &green("v2", "auto")).await.unwrap();
    until_phase(&world, &run, &Phase::Kept).await;
    let now = registered(&world, &run);
    assert_eq!((now.len(), ids(old_ones(&now))), (4, first.clone()));
    world.pass(4 * MINUTE).await;
    assert_eq!(
        ids(old_ones(&registered(&world, &run))),
        first,
        "kept for five minutes"
    );
    let all_new = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(is_second);
    until(&world, &run, all_new, nothing_lost(&world, &run)).await;
    world
        .until("it is over", MINUTE, |world| phase(world, &run).is_none())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn by_hand_green_is_switched_to_and_left_again_at_once() {
    let (world, engine, run) = started(606, 2).await;
    let first = ids(&running(&world, &run));
    let early = world
        .ask_of_rollout(&engine, &run, Ask::Promote)
        .await
        .unwrap_err();
    assert!(
        format!("{early:?}").contains("No roll-out of web is under way"),
        "{early:?}"
    );
    world.update(&engine, &run, &green("v2", "manual")).await.unwrap();
    until_phase(&world, &run, &Phase::Ready).await;
    world.pass(30 * MINUTE).await;
    assert_eq!(phase(&world, &run), Some(Phase::Ready));
    world.ask_of_rollout(&engine, &run, Ask::Promote).await.unwrap();
    until_phase(&world, &run, &Phase::Kept).await;
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    assert_eq!(until_back(&world, &run).await, "it was aborted by hand");
    // In the same commit: whoever was green gets no requests any more.
    let now = registered(&world, &run);
    assert_eq!(ids(&now), first);
    world
        .until("green is gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_is_promoted_is_followed_at_once() {
    let (world, engine, run) = started(607, 2).await;
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    world.ask_of_rollout(&engine, &run, Ask::Promote).await.unwrap();
    let all_new = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(is_second);
    until(&world, &run, all_new, nothing_lost(&world, &run)).await;
}

#[tokio::test(start_paused = true)]
async fn another_deployment_amid_a_canary_takes_its_place_and_the_old_one_stays_the_measure() {
    let (world, engine, run) = started(608, 2).await;
    let first = ids(&running(&world, &run));
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    world.update(&engine, &run, &canary("v3")).await.unwrap();
    let is_third = |job: &JobRow| job.job_spec.commands.iter().any(|command| command.contains("v3"));
    let only_third =
        |jobs: &[JobRow]| jobs.len() == 3 && jobs.iter().filter(|job| is_third(job)).count() == 1;
    until(&world, &run, only_third, nothing_lost(&world, &run)).await;
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    world
        .until("the first one is alone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_roll_out_goes_on_when_more_replicas_are_asked_for_and_ends_with_its_run() {
    let (world, engine, run) = started(609, 2).await;
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let watched = ids(running(&world, &run).iter().filter(|job| is_second(job)));
    let more = rolled_out(3, "v2", &json!({"strategy": "canary", "duration": "1h"}));
    world.update(&engine, &run, &more).await.unwrap();
    let grown = |jobs: &[JobRow]| old_ones(jobs).len() == 3 && jobs.len() == 4;
    let now = until(&world, &run, grown, nothing_lost(&world, &run)).await;
    assert_eq!(
        ids(now.iter().filter(|job| is_second(job))),
        watched,
        "it is watched on"
    );
    assert_eq!(row(&world, &run).deployment_num, 1);
    world.stop(&engine, &run, false).await.unwrap();
    world.finished(&run, 10 * MINUTE).await.unwrap();
    assert_eq!(invariants::at_rest(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_old_replica_that_dies_meanwhile_is_tried_again_as_it_was() {
    let (world, engine, run) = started_retrying(610, &service(2, "v1")).await;
    let mut applied = canary("v2");
    applied["retry"] = json!(true);
    world.update(&engine, &run, &applied).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let dies = old_ones(&running(&world, &run))[0].clone();
    world.hosts.kill_container(dies.id);
    let again = |world: &World| {
        let old = registered(world, &run);
        let old = old_ones(&old);
        old.len() == 2 && old.iter().all(|job| job.id != dies.id)
    };
    world
        .until("there are two again", 10 * MINUTE, again)
        .await
        .unwrap();
    assert_eq!(phase(&world, &run), Some(Phase::Watching));
}

async fn started_retrying(seed: u64, first: &Value) -> (World, Engine, RunRow) {
    let world = World::new(seed, 8).await.unwrap();
    world.hosts.script("web", SERVES);
    let engine = world.start().await.unwrap();
    let mut first = first.clone();
    first["retry"] = json!(true);
    let run = world.submit(&engine, "web", &first).await.unwrap();
    let wanted = |world: &World| {
        let now = jobs(world, &run);
        now.iter().all(|job| job.registered)
    };
    world
        .until("all get requests", 10 * MINUTE, wanted)
        .await
        .unwrap();
    (world, engine, run)
}

#[tokio::test(start_paused = true)]
async fn another_server_goes_on_with_a_roll_out() {
    let (world, engine, run) = started(611, 2).await;
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    engine.stop();
    let _other = world.start_as("other").await.unwrap();
    world.leases_run_out().await;
    world.services.answered(run.id, answered(50, 50));
    until_back(&world, &run).await;
}

/// A bad canary, or a bad green deployment, with an engine that dies at the `nth` passing of a failpoint.
async fn bad_with_death_at(applied: &Value, point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = started(612, 2).await;
    engine.stop();
    let first = ids(&running(&world, &run));
    world.hosts.script("web", CRASHES);
    let death = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&death).await.unwrap();
    let story = async {
        world.update(&engine, &run, applied).await.unwrap();
        let settled = |world: &World| {
            assert!(
                first.is_subset(&ids(&registered(world, &run))),
                "{point} {nth}: a healthy one is lost"
            );
            why_back(world, &run).is_some() && is_as_before(world, &run, &first)
        };
        world
            .until("all is as before", 30 * MINUTE, settled)
            .await
            .unwrap();
    };
    until_told(&world, &engine, story).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{point} {nth}");
    death
}

#[tokio::test(start_paused = true)]
async fn killed_wherever_requests_move_a_bad_deployment_costs_no_healthy_replica() {
    for applied in [canary("v2"), green("v2", "auto")] {
        let story = |point, nth| bad_with_death_at(&applied, point, nth);
        // Whether one is still to be stopped when another one fails depends on which fails first.
        let wanted = |point: &str| moves_requests(point) && !point.starts_with("runner.stop.");
        let points = killed_where(wanted, [1, 2, 3, 5], story).await;
        assert!(points.len() >= 6, "{points:?}");
    }
}

/// A good green deployment with an engine that dies at the `nth` passing of a failpoint.
async fn green_with_death_at(point: &'static str, nth: u32) -> Arc<DieAt> {
    let (world, engine, run) = started(613, 2).await;
    engine.stop();
    let death = Arc::new(DieAt::new(point, nth));
    let engine = world.start_dying(&death).await.unwrap();
    let story = async {
        world.update(&engine, &run, &green("v2", "auto")).await.unwrap();
        let all_new = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(is_second);
        until(&world, &run, all_new, nothing_lost(&world, &run)).await;
    };
    until_told(&world, &engine, story).await;
    assert_eq!(invariants::always(&world), Vec::<String>::new(), "{point} {nth}");
    death
}

#[tokio::test(start_paused = true)]
async fn killed_wherever_requests_move_green_replaces_blue_without_a_gap() {
    let points = killed_where(moves_requests, [1, 2, 3, 5], green_with_death_at).await;
    assert!(points.len() >= 6, "{points:?}");
}

#[tokio::test(start_paused = true)]
async fn the_only_old_replica_may_die_while_a_canary_gets_ready() {
    let (world, engine, run) = started(614, 1).await;
    let first = running(&world, &run)[0].clone();
    let rollout = json!({"strategy": "canary", "duration": "2m"});
    world
        .update(&engine, &run, &rolled_out(1, "v2", &rollout))
        .await
        .unwrap();
    let is_made = |world: &World| jobs(world, &run).iter().any(is_second);
    world.until("a canary is made", MINUTE, is_made).await.unwrap();
    world.hosts.kill_container(first.id);
    until(
        &world,
        &run,
        |jobs| jobs.len() == 1 && jobs.iter().all(is_second),
        anything,
    )
    .await;
    let is_running = |world: &World| row(world, &run).status() == RunStatus::Running;
    world.until("it goes on", MINUTE, is_running).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_has_lost_both_sides_starts_again_as_it_was() {
    let (world, engine, run) = started_retrying(615, &service(1, "v1")).await;
    let mut applied = rolled_out(1, "v2", &json!({"strategy": "canary", "duration": "1h"}));
    applied["retry"] = json!(true);
    world.update(&engine, &run, &applied).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    for job in running(&world, &run) {
        world.hosts.kill_container(job.id);
    }
    let reason = until_back(&world, &run).await;
    assert!(reason.starts_with("no replica was left"), "{reason}");
    let as_before = |jobs: &[JobRow]| jobs.len() == 1 && !jobs.iter().any(is_second);
    until(&world, &run, as_before, anything).await;
}

fn in_groups(first: &str, rollout: &Value) -> Value {
    let group = |name: &str, replicas: i64, command: &str| json!({"name": name, "replicas": replicas, "commands": [command]});
    let groups = json!([group("a", 1, first), group("b", 2, "v1")]);
    json!({"type": "service", "port": 8000, "commands": null, "groups": groups, "rollout": rollout})
}

#[tokio::test(start_paused = true)]
async fn what_is_rolled_back_leaves_other_groups_alone() {
    let before = in_groups("v1", &json!({"strategy": "rolling"}));
    let (world, engine, run) = started_retrying(616, &before).await;
    let mut applied = in_groups("v2", &json!({"strategy": "canary", "duration": "1h"}));
    applied["retry"] = json!(true);
    world.update(&engine, &run, &applied).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let of_b = |world: &World| {
        let mut found = registered(world, &run);
        found.retain(|job| job.job_spec.replica_group == "b");
        ids(&found)
    };
    let dies = *of_b(&world).first().unwrap();
    world.hosts.kill_container(dies);
    let again = |world: &World| of_b(world).len() == 2 && !of_b(world).contains(&dies);
    world.until("b has two again", 10 * MINUTE, again).await.unwrap();
    let now = of_b(&world);
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    until_back(&world, &run).await;
    let stays = |world: &World| of_b(world) == now;
    world
        .throughout("b stays as it is", 10 * MINUTE, stays)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn kept_replicas_stay_while_green_is_dead() {
    let (world, engine, run) = started(617, 2).await;
    let first = ids(&running(&world, &run));
    world.update(&engine, &run, &green("v2", "auto")).await.unwrap();
    until_phase(&world, &run, &Phase::Kept).await;
    let of_green = |world: &World| {
        let mut found = registered(world, &run);
        found.retain(is_second);
        found
    };
    world.hosts.kill_container(of_green(&world)[0].id);
    let blue_stays = |world: &World| first.is_subset(&ids(&registered(world, &run)));
    world
        .throughout("blue stays", 20 * MINUTE, blue_stays)
        .await
        .unwrap();
    assert_eq!(of_green(&world).len(), 1);
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    until_back(&world, &run).await;
    world
        .until("green is gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_few_kept_replicas_do_not_take_all_requests_at_once() {
    let (world, engine, run) = started(618, 2).await;
    world.update(&engine, &run, &green("v2", "auto")).await.unwrap();
    until_phase(&world, &run, &Phase::Kept).await;
    let blue = old_ones(&registered(&world, &run))[0].id;
    world.hosts.kill_container(blue);
    world
        .until("one blue one is left", 5 * MINUTE, |world| {
            registered(world, &run).len() == 3
        })
        .await
        .unwrap();
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    let as_before = |jobs: &[JobRow]| jobs.len() == 2 && !jobs.iter().any(is_second);
    until(&world, &run, as_before, nothing_lost(&world, &run)).await;
}

#[tokio::test(start_paused = true)]
async fn what_only_some_have_told_of_a_canary_is_enough_to_go_back_and_never_to_go_on() {
    let (world, engine, run) = started(619, 2).await;
    let first = ids(&running(&world, &run));
    world.services.answered(run.id, partly_answered(1000, 0));
    world.update(&engine, &run, &canary("v2")).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let is_watched = |world: &World| phase(world, &run) == Some(Phase::Watching);
    world
        .throughout("it is watched on", 10 * MINUTE, is_watched)
        .await
        .unwrap();
    world.services.answered(run.id, partly_answered(1000, 51));
    let reason = until_back(&world, &run).await;
    assert!(reason.starts_with("51 of 1000 answers failed"), "{reason}");
    world
        .until("the canary is gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

fn waits_for(world: &World, run: &RunRow) -> String {
    let row = row(world, run);
    row.waiting_for().map(ToString::to_string).unwrap_or_default()
}

/// A service whose new deployment stands beside the old one at a gateway that cannot split requests.
async fn unsplit(seed: u64, applied: &Value) -> (World, Engine, RunRow) {
    let (world, engine, run) = started(seed, 2).await;
    world.services.can_split(run.id, false);
    world.update(&engine, &run, applied).await.unwrap();
    let says_so = |world: &World| waits_for(world, &run).contains("cannot split requests");
    world
        .until("it says what is in the way", 10 * MINUTE, says_so)
        .await
        .unwrap();
    (world, engine, run)
}

#[tokio::test(start_paused = true)]
async fn at_a_gateway_that_cannot_split_requests_a_roll_out_waits_and_says_so() {
    for (seed, applied, next) in [
        (620, canary("v2"), Phase::Watching),
        (621, green("v2", "manual"), Phase::Ready),
    ] {
        let (world, _engine, run) = unsplit(seed, &applied).await;
        let first = ids(old_ones(&running(&world, &run)));
        let stays = |world: &World| {
            let now = running(world, &run);
            phase(world, &run) == Some(Phase::Preparing) && ids(old_ones(&now)) == first
        };
        world.throughout("it waits", 30 * MINUTE, stays).await.unwrap();
        world.services.can_split(run.id, true);
        until_phase(&world, &run, &next).await;
        assert!(!waits_for(&world, &run).contains("cannot split"));
    }
}

#[tokio::test(start_paused = true)]
async fn by_hand_a_roll_out_goes_on_or_back_at_a_gateway_that_cannot_split_requests() {
    let (world, engine, run) = unsplit(622, &canary("v2")).await;
    world.ask_of_rollout(&engine, &run, Ask::Promote).await.unwrap();
    let all_new = |jobs: &[JobRow]| jobs.len() == 2 && jobs.iter().all(is_second);
    until(&world, &run, all_new, nothing_lost(&world, &run)).await;

    let (world, engine, run) = unsplit(623, &green("v2", "auto")).await;
    let first = ids(old_ones(&running(&world, &run)));
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    assert_eq!(until_back(&world, &run).await, "it was aborted by hand");
    world
        .until("green is gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

/// Groups `a` with two replicas, and `b`, which has none, as its requests ask for none.
async fn with_an_empty_group(seed: u64) -> (World, Engine, RunRow) {
    let world = World::new(seed, 8).await.unwrap();
    world.hosts.script("web", SERVES);
    let engine = world.start().await.unwrap();
    let scaling = json!({"metric": "rps", "target": 10});
    let first = json!({"type": "service", "port": 8000, "commands": null, "groups": [
        {"name": "a", "replicas": 2, "commands": ["v1"]},
        {"name": "b", "replicas": "0..2", "scaling": scaling, "commands": ["v1"]},
    ]});
    let run = world.submit(&engine, "web", &first).await.unwrap();
    until(&world, &run, |jobs| jobs.len() == 2, anything).await;
    (world, engine, run)
}

fn both_groups(command: &str, rollout: &Value) -> Value {
    let group = |name: &str| json!({"name": name, "replicas": 2, "commands": [command]});
    json!({"type": "service", "port": 8000, "commands": null, "groups": [group("a"), group("b")], "rollout": rollout})
}

fn by_group(jobs: &[JobRow]) -> Vec<(&str, bool)> {
    let mut found: Vec<(&str, bool)> = jobs
        .iter()
        .map(|job| (job.job_spec.replica_group.as_str(), is_second(job)))
        .collect();
    found.sort_unstable();
    found
}

#[tokio::test(start_paused = true)]
async fn a_canary_of_a_group_without_replicas_is_as_small_as_that_of_the_others() {
    let (world, engine, run) = with_an_empty_group(624).await;
    let rollout = json!({"strategy": "canary", "duration": "2m", "max_error_rate": "5%"});
    world
        .update(&engine, &run, &both_groups("v2", &rollout))
        .await
        .unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let watched = [("a", false), ("a", false), ("a", true), ("b", true)];
    assert_eq!(by_group(&running(&world, &run)), watched);
    let stays = |world: &World| by_group(&running(world, &run)) == watched;
    world
        .throughout("it is watched", 10 * MINUTE, stays)
        .await
        .unwrap();
    world.services.answered(run.id, answered(100, 0));
    let all_new = |jobs: &[JobRow]| by_group(jobs) == [("a", true), ("a", true), ("b", true), ("b", true)];
    until(&world, &run, all_new, nothing_lost(&world, &run)).await;
}

#[tokio::test(start_paused = true)]
async fn a_canary_of_a_group_without_replicas_ends_at_once_when_it_is_rolled_back() {
    let (world, engine, run) = with_an_empty_group(625).await;
    let first = ids(&running(&world, &run));
    let rollout = json!({"strategy": "canary", "duration": "2m", "max_error_rate": "5%"});
    world
        .update(&engine, &run, &both_groups("v2", &rollout))
        .await
        .unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    assert_eq!(registered(&world, &run).len(), 4);
    world.services.answered(run.id, answered(100, 50));
    until_back(&world, &run).await;
    // In the same commit.
    assert_eq!(ids(&registered(&world, &run)), first);
    world
        .until("the canaries are gone", 5 * MINUTE, |world| {
            is_as_before(world, &run, &first)
        })
        .await
        .unwrap();
}

/// Group `b` stays as it is, beside a canary of `a` and this change, when all of its replicas are tried again, and when it is rolled back.
async fn b_stays(seed: u64, change: (&str, Value)) {
    let before = in_groups("v1", &json!({"strategy": "rolling"}));
    let (world, engine, run) = started_retrying(seed, &before).await;
    let mut applied = in_groups("v2", &json!({"strategy": "canary", "duration": "1h"}));
    applied["retry"] = json!(true);
    applied[change.0] = change.1;
    world.update(&engine, &run, &applied).await.unwrap();
    until_phase(&world, &run, &Phase::Watching).await;
    let of_b = |world: &World| {
        let mut found = registered(world, &run);
        found.retain(|job| job.job_spec.replica_group == "b");
        ids(&found)
    };
    let before = of_b(&world);
    for job in &before {
        world.hosts.kill_container(*job);
    }
    let again = |world: &World| of_b(world).len() == 2 && of_b(world).is_disjoint(&before);
    world.until("b has two again", 10 * MINUTE, again).await.unwrap();
    let now = of_b(&world);
    let stays = |world: &World| of_b(world) == now;
    world
        .throughout("b stays as it is", 10 * MINUTE, stays)
        .await
        .unwrap();
    world.ask_of_rollout(&engine, &run, Ask::Abort).await.unwrap();
    until_back(&world, &run).await;
    world
        .throughout("also when it is rolled back", 10 * MINUTE, stays)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_group_that_stays_as_it_is_keeps_its_number_when_all_of_its_replicas_are_tried_again() {
    b_stays(626, ("type", json!("service"))).await;
}

/// The specifications alone do not tell that its replicas are the same.
#[tokio::test(start_paused = true)]
async fn a_group_whose_replicas_are_the_same_stays_when_something_else_changes() {
    b_stays(627, ("https", json!(true))).await;
}
