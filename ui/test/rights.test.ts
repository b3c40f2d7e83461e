import { expect, test } from "vitest";
import type { Member, Project, User } from "../src/api/types";
import { rightsIn, rolesToGive } from "../src/logic/rights";

const user = (username: string, global_role: User["global_role"] = "user"): User => ({
  id: username,
  username,
  created_at: null,
  global_role,
  email: null,
  active: true,
  permissions: { can_create_projects: true },
  ssh_public_key: null,
});
const member = (username: string, project_role: Member["project_role"], secrets = false): Member => ({
  user: user(username),
  project_role,
  permissions: { can_manage_ssh_fleets: true, can_manage_secrets: secrets },
});
const project = (members: Member[], is_public = false): Project => ({
  project_id: "p",
  project_name: "p",
  owner: user("owner"),
  created_at: null,
  backends: [],
  members,
  is_public,
  templates_repo: null,
});

test("a member may use, and nothing more", () => {
  const rights = rightsIn(project([member("a", "admin"), member("u", "user")]), user("u"));
  expect(rights).toMatchObject({ use: true, manageMembers: false, manageBackends: false, manageSecrets: false, manageProject: false, deleteProject: false, leave: true, join: false });
  expect(rolesToGive(rights, "user")).toEqual([]);
});

test("a manager has members, but no admins", () => {
  const rights = rightsIn(project([member("a", "admin"), member("m", "manager", true)]), user("m"));
  expect(rights).toMatchObject({ manageMembers: true, manageAdmins: false, manageBackends: false, manageSecrets: true, manageProject: false });
  expect(rolesToGive(rights, "user")).toEqual(["manager", "user"]);
  expect(rolesToGive(rights, "admin")).toEqual([]);
});

test("the last admin cannot leave", () => {
  expect(rightsIn(project([member("a", "admin")]), user("a")).leave).toBe(false);
  expect(rightsIn(project([member("a", "admin"), member("b", "admin")]), user("a")).leave).toBe(true);
});

test("an administrator of the server may do everything, without being a member", () => {
  const rights = rightsIn(project([]), user("root", "admin"));
  expect(rights).toMatchObject({ use: true, manageAdmins: true, manageBackends: true, manageSecrets: true, deleteProject: true, leave: false, join: false });
});

test("others may join what is public, and see nothing to do elsewhere", () => {
  expect(rightsIn(project([], true), user("x"))).toMatchObject({ use: false, join: true, manageMembers: false });
  expect(rightsIn(project([]), user("x"))).toMatchObject({ use: false, join: false });
  expect(rightsIn(project([]), user("owner")).deleteProject).toBe(true);
});
