import { type JobContext, openJobContext } from '../operations/job-context.ts';
import { type LeaseSelection, requireLeaseRef } from '../operations/lease-reference.ts';
import { BaseCommand } from './base-command.ts';

/** A command about one job that talks to no node; see context-command.ts for all others. */
export abstract class JobCommand extends BaseCommand {
  /** Opens what the operation needs, and closes it again whatever happens. */
  protected async withJobContext<T>(
    flags: { config: string | undefined },
    selection: LeaseSelection,
    work: (context: JobContext) => Promise<T>,
  ): Promise<T> {
    const context = openJobContext({
      configFlag: flags.config,
      ref: requireLeaseRef(selection),
      tell: (text) => this.tell(text),
    });
    try {
      return await work(context);
    } finally {
      await context.close();
    }
  }
}
