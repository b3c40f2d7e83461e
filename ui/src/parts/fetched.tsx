/** Parts of the page that are fetched when they are needed, and what is done where they are not there. */

import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { isAlive } from "../api/client";
import { serverWasLost, useIsLost } from "../connection";
import { tabStorage } from "../logic/kept-draft";
import { mayReload } from "../logic/reload";
import { Alert, Button, Loading } from "./basic";

/** A part of the page is not there, or does not come. */
export class PartMissing extends Error {
  override name = "PartMissing";
  constructor(cause: unknown) {
    super("A part of this page cannot be fetched. When the server was updated, load the page anew.", { cause });
  }
}

/** Fetches a part. */
export async function fetched<T>(part: Promise<T>): Promise<T> {
  return part.catch((error: unknown) => {
    throw new PartMissing(error);
  });
}

/** In place of a part that is not there: waits for a server that does not answer, and loads the page anew, once. */
export function Missing() {
  const client = useQueryClient();
  const isLost = useIsLost();
  const [isInVain, setInVain] = useState(false);
  useEffect(() => {
    if (isLost) return;
    let isOver = false;
    void isAlive().then((isThere) => {
      if (isOver) return;
      if (!isThere) serverWasLost(client);
      else if (mayReload(tabStorage(), Date.now())) globalThis.location.reload();
      else setInVain(true);
    });
    return () => {
      isOver = true;
    };
  }, [client, isLost]);
  if (!isInVain) return <Loading what="the page" />;
  return (
    <Alert kind="bad" title="A part of this page cannot be fetched">
      The server answers, but does not have it, also after the page was loaded anew. A proxy in between may keep an older page.{" "}
      <Button onClick={() => globalThis.location.reload()}>Load it anew</Button>
    </Alert>
  );
}
