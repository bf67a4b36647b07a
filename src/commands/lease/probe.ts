import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../../cli/context-command.ts';
import { peerFlag, probeTimeoutFlag } from '../../cli/flags.ts';
import { renderProbe } from '../../cli/render-lease.ts';
import { probeStorage } from '../../operations/lease-probe.ts';

export default class LeaseProbe extends ContextCommand {
  static override summary = 'Try whether storage keeps the promises of the lease log.';
  static override description =
    'Shared storage is tried by two controllers: --listen on one of them, then --peer on the other. Both write down what they have seen.';
  static override examples = [
    '<%= config.bin %> lease probe --listen',
    '<%= config.bin %> lease probe --peer ctl2',
  ];

  static override flags = {
    listen: Flags.boolean({
      description: 'Wait for one probe of another controller.',
      exclusive: ['peer'],
    }),
    peer: peerFlag({ description: 'Controller on which "lease probe --listen" runs.' }),
    timeout: probeTimeoutFlag({ description: 'How long it may take, the wait for it included.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseProbe);
    await this.withContext(flags, async (context) => {
      const { listen, peer, timeout: timeoutMs } = flags;
      await this.show(flags, await probeStorage(context, { listen, peer, timeoutMs }), renderProbe);
    });
  }
}
