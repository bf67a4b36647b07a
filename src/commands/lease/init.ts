import { ContextCommand } from '../../cli/context-command.ts';
import { peerFlag, probeTimeoutFlag } from '../../cli/flags.ts';
import { renderPosition } from '../../cli/render-lease.ts';
import { initLeaseLog } from '../../operations/lease-log.ts';

export default class LeaseInit extends ContextCommand {
  static override summary = 'Create the lease log of this cluster and instance.';
  static override description =
    'Done once. Refused where anything of an earlier log is found, and on storage that does not keep what the log needs.';
  static override examples = ['<%= config.bin %> lease init --peer ctl2'];

  static override flags = {
    peer: peerFlag({
      description: 'Controller on which "lease probe --listen" runs; for shared storage.',
    }),
    timeout: probeTimeoutFlag({ description: 'How long the probe with it may take.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseInit);
    await this.withContext(flags, async (context) => {
      const position = await initLeaseLog(context, { peer: flags.peer, timeoutMs: flags.timeout });
      await this.show(flags, position, renderPosition);
    });
  }
}
