/**
 * The composition root: what the operations of one command share, made from the configuration. Parts that an
 * operation does not use are never made.
 */
import type { Settings } from '../config/settings.ts';
import { createFleet, type Fleet } from '../launch/fleet.ts';
import type { LeaseEvent } from '../lease/event.ts';
import type { LeaseState } from '../lease/state.ts';
import { LeaseStore } from '../lease/store.ts';
import { createTicketSigner, type SharedClaims, type TicketSigner } from '../lease/ticket.ts';
import type { LeaseView } from '../lease/view.ts';
import { machinePorts } from '../normalise/machine-ports.ts';
import type { NormalisePorts } from '../normalise/ports.ts';
import { type Accounts, createAccounts } from '../os/accounts.ts';
import { bootClock } from '../os/boot-clock.ts';
import { type Clock, readBootId } from '../os/clock.ts';
import { createNameService, type NameService } from '../os/name-service.ts';
import { type Identity, loadIdentity, loadTicketPrivateKey } from '../pki/identity.ts';
import { connectTls } from '../rpc/client.ts';
import { hasUserRecord } from '../sandbox/systemd/own-record.ts';
import { openGate } from '../sandbox/workspace.ts';
import type { LeaseLog } from '../wal/log.ts';
import type { ControllerStorage } from '../wal/probe.ts';
import { openLeaseLog, openLogStorage } from './lease-log-ports.ts';
import { tellNotices } from './notices.ts';
import { openConfig, requireRoot } from './open-config.ts';
import type { Progress } from './progress.ts';

export type Context = {
  readonly settings: Settings;
  readonly configPath: string;
  readonly progress: Progress;
  readonly clock: Clock;
  readonly log: LeaseLog<LeaseState, LeaseEvent>;
  /** What the log lies on. */
  readonly storage: ControllerStorage;
  /** Certificate and key of this host. */
  readonly identity: Identity;
  readonly leases: LeaseStore;
  readonly fleet: Fleet;
  readonly accounts: Accounts;
  readonly nameService: NameService;
  /** Whether a sandbox of the lease has its user record on this host. */
  hasUserRecord(lease: Pick<LeaseView, 'lease' | 'uid'>): boolean;
  readonly normalisePorts: NormalisePorts;
  /** Lets everybody reach a workspace that is the submitter's now; see sandbox/workspace.ts. */
  openGate(path: string): void;
  /** Only after the commit that the ticket rests on was acknowledged. */
  ticketSigner(claims: SharedClaims): TicketSigner;
  /** One remark for the operator; never data. */
  tell(text: string): void;
  close(): Promise<void>;
};

/** Makes its value when it is first asked for. */
const lazy = <T>(make: () => T): { readonly get: () => T; readonly made: () => T | undefined } => {
  let value: { readonly it: T } | undefined;
  return {
    get: () => {
      value ??= { it: make() };
      return value.it;
    },
    made: () => value?.it,
  };
};

/** Throws 'not-root', and what openConfig throws. */
export const openContext = (options: {
  readonly configFlag: string | undefined;
  readonly progress: Progress;
  readonly tell: (text: string) => void;
}): Context => {
  requireRoot();
  const { settings, path: configPath } = openConfig(options.configFlag);
  const { directory, nodes, cluster } = settings;
  const clock = bootClock;
  const nameService = createNameService(directory);
  const identity = lazy(() => loadIdentity(cluster.pki));
  const ticketKey = lazy(() => loadTicketPrivateKey(cluster.pki));
  const log = lazy(() => openLeaseLog(settings));
  const storage = lazy(() => openLogStorage(settings));
  const leases = lazy(
    () =>
      new LeaseStore(
        {
          log: log.get(),
          nameService,
          clock,
          bootId: readBootId(),
        },
        settings,
      ),
  );
  const fleet = lazy(() =>
    createFleet((node) =>
      connectTls(
        { address: node, port: nodes.port, identity: identity.get(), expectNode: node },
        { timeoutMs: nodes.connectTimeoutMs },
      ),
    ),
  );
  return {
    settings,
    configPath,
    clock,
    progress: options.progress,
    tell: options.tell,
    accounts: createAccounts({ timeoutMs: directory.timeoutMs }),
    nameService,
    hasUserRecord: ({ lease, uid }) => hasUserRecord({ instance: cluster.instance, lease, uid }),
    normalisePorts: machinePorts,
    openGate,
    get log() {
      return log.get();
    },
    get storage() {
      return storage.get();
    },
    get identity() {
      return identity.get();
    },
    get leases() {
      return leases.get();
    },
    get fleet() {
      return fleet.get();
    },
    ticketSigner: (claims) => createTicketSigner(claims, ticketKey.get()),
    close: async () => {
      fleet.made()?.close();
      tellNotices(options, (await log.made()?.close()) ?? []);
    },
  };
};
