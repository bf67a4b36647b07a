/** The lease log for whoever has to do with one job: replayed as a view of it, and as a whole where that is needed. */
import type { CommitContext, Committed, Decision, LeaseLog, LogNotice } from '../wal/log.ts';
import type { LeaseEvent } from './event.ts';
import { type JobView, WholeStateNeeded } from './job-view.ts';
import type { RuleLog } from './rule-commit.ts';
import type { JobState, LeaseState } from './state.ts';

export type JobLogPorts = {
  openView(): LeaseLog<JobView, LeaseEvent>;
  openWhole(): LeaseLog<LeaseState, LeaseEvent>;
};

export class JobLog implements RuleLog<JobState> {
  readonly #ports: JobLogPorts;
  #view: LeaseLog<JobView, LeaseEvent> | undefined;
  #whole: LeaseLog<LeaseState, LeaseEvent> | undefined;
  readonly #untold: LogNotice[] = [];

  constructor(ports: JobLogPorts) {
    this.#ports = ports;
  }

  async commit<Result>(
    decide: (state: JobState, context: CommitContext) => Decision<LeaseEvent, Result>,
  ): Promise<Committed<Result>> {
    if (this.#whole === undefined) {
      try {
        this.#view ??= this.#ports.openView();
        return await this.#view.commit(decide);
      } catch (error) {
        if (!(error instanceof WholeStateNeeded)) throw error;
      }
      // One descriptor of the log per process.
      this.#untold.push(...(await this.close()));
      this.#whole = this.#ports.openWhole();
    }
    return await this.#whole.commit(decide);
  }

  /** Returns what nobody has been told yet. */
  async close(): Promise<readonly LogNotice[]> {
    const view = this.#view;
    this.#view = undefined;
    const untold = [...this.#untold.splice(0), ...((await view?.close()) ?? [])];
    return [...untold, ...((await this.#whole?.close()) ?? [])];
  }
}
