/** Short names for the API's types, which are made from its OpenAPI document (`npm run types`). */

import type { components, paths } from "./schema";

type Schemas = components["schemas"];

export type Run = Schemas["Run-Output"];
export type Job = Schemas["Job-Output"];
export type JobSubmission = Schemas["JobSubmission-Output"];
export type RunPlan = Schemas["RunPlan"];
export type JobPlan = Schemas["JobPlan"];
export type JobExplanation = Schemas["JobExplanation"];
export type Rollout = Schemas["RolloutState"];
export type RolloutDeployment = Schemas["RolloutDeployment"];
export type RunSpecInput = Schemas["RunSpec-Input"];
export type Offer = Schemas["InstanceOfferWithAvailability-Output"];
export type Resources = Schemas["Resources-Output"];
export type Fleet = Schemas["Fleet-Output"];
export type FleetPlan = Schemas["FleetPlan"];
export type Instance = Schemas["Instance-Output"];
export type Volume = Schemas["Volume"];
export type Gateway = Schemas["Gateway-Output"];
export type Project = Schemas["Project"];
export type Member = Schemas["Member"];
export type User = Schemas["User"];
export type UserWithCreds = Schemas["UserWithCreds"];
export type UserToken = Schemas["UserToken"];
export type NewUserToken = Schemas["NewUserToken"];
export type PublicKey = Schemas["PublicKeyInfo"];
export type Secret = Schemas["Secret"];
export type Event = Schemas["Event"];
export type EventsRequest = Schemas["ListEventsRequest"];
export type LogEvent = Schemas["LogEvent"];
export type Metric = Schemas["Metric"];
export type GpuGroup = Schemas["GpuGroup"];
export type CpuGroup = Schemas["CpuGroup"];
export type Diagnosis = Schemas["Diagnosis"];

type Json<T> = T extends { content: { "application/json": infer B } } ? B : never;

/** Paths that take POST. */
export type PostPath = { [P in keyof paths]: paths[P] extends { post: object } ? P : never }[keyof paths];
type Post<P extends PostPath> = paths[P] extends { post: infer O } ? O : never;

/** The body that a path takes. */
export type Body<P extends PostPath> = Post<P> extends { requestBody?: infer B } ? Json<NonNullable<B>> : undefined;
/** What a path answers. */
export type Answer<P extends PostPath> = Post<P> extends { responses: { 200: infer R } } ? Json<R> : never;

type Names<P extends string> = P extends `${string}{${infer N}}${infer Rest}` ? N | Names<Rest> : never;
/** Values for the names in a path. */
export type Params<P extends string> = { [N in Names<P>]: string };
