/** What a user may do: what they may not is not shown. The server decides all the same. */

import type { Member, Project, User } from "../api/types";

type Role = Member["project_role"];

export interface Rights {
  isAdminOfServer: boolean;
  role: Role | null;
  /** Submit, stop and delete runs, fleets and volumes. */
  use: boolean;
  manageMembers: boolean;
  manageAdmins: boolean;
  manageBackends: boolean;
  manageGateways: boolean;
  manageSecrets: boolean;
  manageProject: boolean;
  deleteProject: boolean;
  join: boolean;
  leave: boolean;
}

/** What a user may do in a project whose members are known. */
export function rightsIn(project: Project, me: User): Rights {
  const isAdminOfServer = me.global_role === "admin";
  const member = project.members.find((each) => each.user.username === me.username);
  const role = member?.project_role ?? null;
  const isAdmin = isAdminOfServer || role === "admin";
  const admins = project.members.filter((each) => each.project_role === "admin");
  return {
    isAdminOfServer,
    role,
    use: isAdminOfServer || role !== null,
    manageMembers: isAdmin || role === "manager",
    manageAdmins: isAdmin,
    manageBackends: isAdmin,
    manageGateways: isAdmin,
    manageSecrets: isAdminOfServer || member?.permissions.can_manage_secrets === true,
    manageProject: isAdmin,
    deleteProject: isAdmin || project.owner.username === me.username,
    join: role === null && project.is_public,
    leave: role !== null && !(role === "admin" && admins.length === 1),
  };
}

/** Roles that a user may give to a member who has this role. */
export function rolesToGive(rights: Rights, current: Role | null): Role[] {
  if (!rights.manageMembers) return [];
  if (rights.manageAdmins) return ["admin", "manager", "user"];
  return current === "admin" ? [] : ["manager", "user"];
}
