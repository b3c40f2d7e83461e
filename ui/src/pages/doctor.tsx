/** What is wrong with the installation, for administrators. */

import { useQuery } from "@tanstack/react-query";
import { post } from "../api/client";
import { money } from "../logic/format";
import { exact } from "../logic/time";
import { Alert, Button, Empty, Facts, Failure, Head, Loading, Section, Time } from "../parts/basic";
import { CliButton } from "../parts/dialog";

export function DoctorPage() {
  const query = useQuery({
    queryKey: ["doctor"],
    queryFn: ({ signal }) => post("/api/server/get_diagnosis", { signal }),
    staleTime: 0,
    refetchOnWindowFocus: false,
  });
  const findings = query.data?.findings ?? [];
  return (
    <>
      <Head title="Doctor">
        <CliButton text="dstack doctor" />
        <Button busy={query.isFetching} onClick={() => void query.refetch()}>
          Look again
        </Button>
      </Head>
      <Failure error={query.error} />
      {query.isFetching && <Loading what="what stores, clocks, backends and hosts say; that may take a minute" />}
      {query.data && (
        <>
          {findings.length === 0 ? (
            <Empty title="Nothing is wrong">
              <p>Looked at {exact(query.data.answered_at)}.</p>
            </Empty>
          ) : (
            <Section title={findings.length === 1 ? "One finding" : `${findings.length} findings`}>
              {findings.map((finding, at) => (
                <Alert key={at} kind="warning" title={`${finding.subject}: ${finding.problem}`}>
                  <p>{finding.remedy}</p>
                  <Facts
                    facts={[
                      ["Check", finding.check],
                      ["Projects", finding.projects.join(", ")],
                      ["Since", finding.since && <Time at={finding.since} />],
                      ["It costs", finding.price_per_hour ? `${money(finding.price_per_hour)}/h` : null],
                    ]}
                  />
                </Alert>
              ))}
            </Section>
          )}
          <Section title="What was looked at">
            <Facts facts={query.data.checks.map((check) => [check.check, check.looked_at])} />
          </Section>
        </>
      )}
    </>
  );
}
