/** What `npm run bench` can measure. A topic is one function that returns its rows. */

import { benchLaunch } from './launch.ts';
import { benchLease } from './lease.ts';
import { benchNormalise } from './normalise.ts';
import type { Row } from './rows.ts';
import { benchStartup } from './startup.ts';

export type Topic = {
  readonly about: string;
  readonly run: (report: (line: string) => void) => Promise<readonly Row[]>;
};

export const TOPICS: Readonly<Record<string, Topic>> = {
  launch: { about: 'a launch, beside bare TLS, bare HTTP/2 and systemd-run', run: benchLaunch },
  lease: { about: 'the lease log, beside node -e 0, an etcd and JSON lines', run: benchLease },
  normalise: { about: 'handing files over, beside chown -R and find', run: benchNormalise },
  startup: { about: 'what a command costs before it does anything, beside node -e 0', run: benchStartup },
};
