/** Offers of a plan, the first few. */

import type { Offer } from "../api/types";
import { count, price, resources, words } from "../logic/format";
import { Status } from "./basic";
import { type Column, Table } from "./table";

const OFFER_COLUMNS: Column<Offer>[] = [
  {
    name: "Where",
    cell: (offer) => (
      <>
        {offer.backend} {offer.region !== offer.backend && offer.region}
        <span className="sub">{offer.instance.name}</span>
      </>
    ),
  },
  { name: "What", cell: (offer) => `${resources(offer.instance.resources, true)}${offer.instance.resources.spot ? " · spot" : ""}` },
  { name: "Price", cell: (offer) => price(offer.price), isNumber: true },
  { name: "State", cell: (offer) => <Status text={words(offer.availability)} base={["available", "idle"].includes(offer.availability) ? "available" : "warning"} /> },
];

const SHOWN_OFFERS = 8;

export function OfferTable({ offers, total }: { offers: Offer[]; total: number }) {
  if (total === 0) return null;
  return (
    <>
      <Table label="Offers" columns={OFFER_COLUMNS} rows={offers.slice(0, SHOWN_OFFERS)} idOf={(offer) => JSON.stringify([offer.backend, offer.region, offer.instance, offer.price, offer.availability, offers.indexOf(offer)])} />
      {total > SHOWN_OFFERS && <p className="muted">and {count(total - SHOWN_OFFERS, "more offer")}</p>}
    </>
  );
}
