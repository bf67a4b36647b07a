/** The lease log's promises without a disk: commits one after another, each seeing the ones before it. */
import { XceError } from '../../../src/base/errors.ts';
import type { LeaseEvent } from '../../../src/lease/event.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import type { LeaseState } from '../../../src/lease/state.ts';
import type {
  CommitContext,
  Committed,
  Decision,
  LeaseLog,
  LogNotice,
  LogPosition,
  LogView,
} from '../../../src/wal/log.ts';
import { T0 } from './scene.ts';

export class MemoryLog implements LeaseLog<LeaseState, LeaseEvent> {
  readonly records: (readonly Uint8Array[])[] = [];
  epoch = 1;
  wallMs = T0;
  skewMs = 0;
  stepMs = 0;
  /** Told with the next commit. */
  notices: LogNotice[] = [];
  /** Runs before each commit decides, as another controller would. */
  beforeCommit: (commit: number) => void = () => undefined;
  /** The next commits end with this error before they decide. */
  failure: XceError | undefined;
  commits = 0;

  #replay(): LeaseState {
    const state = leaseMachine.empty();
    for (const record of this.records) for (const bytes of record) leaseMachine.replay(state, bytes);
    return state;
  }

  #position(): LogPosition {
    return { epoch: this.epoch, token: '0'.repeat(32), host: 'c1', sequence: this.records.length };
  }

  append(events: readonly LeaseEvent[]): void {
    if (events.length > 0) this.records.push(events.map((event) => leaseMachine.encode(event)));
  }

  async owns(): Promise<boolean> {
    return true;
  }

  async requireNone(): Promise<void> {
    throw new XceError('log-exists', 'a log in memory is always there');
  }

  async init(): Promise<LogPosition> {
    await this.requireNone();
    return this.#position();
  }

  async read(): Promise<LogView<LeaseState>> {
    return { ...this.#position(), state: this.#replay(), owned: true, tornBytes: 0 };
  }

  /** Nothing is replayed before it is asked for. */
  guess(): undefined {
    return undefined;
  }

  async commit<Result>(
    decide: (state: LeaseState, context: CommitContext) => Decision<LeaseEvent, Result>,
  ): Promise<Committed<Result>> {
    this.commits += 1;
    if (this.failure !== undefined) throw this.failure;
    this.beforeCommit(this.commits);
    const { wallMs, skewMs, stepMs } = this;
    const { events, result } = decide(this.#replay(), { ...this.#position(), wallMs, skewMs, stepMs });
    this.append(events);
    this.#replay();
    return { result, position: this.#position(), notices: this.notices.splice(0) };
  }

  async takeover(): Promise<LogPosition & { notices: readonly LogNotice[] }> {
    this.epoch += 1;
    return { ...this.#position(), notices: [] };
  }

  compact(): Promise<LogPosition & { notices: readonly LogNotice[] }> {
    return this.takeover();
  }

  async close(): Promise<readonly LogNotice[]> {
    return [];
  }
}
