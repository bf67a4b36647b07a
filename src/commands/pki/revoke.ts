import * as Flags from '@oclif/core/flags';
import { BaseCommand } from '../../cli/base-command.ts';
import { renderRevocation } from '../../cli/render-config.ts';
import { revokeCertificates } from '../../operations/pki.ts';

export default class PkiRevoke extends BaseCommand {
  static override summary = 'Revoke the certificates of a host.';
  static override description =
    'Adds them to ca.crl in the directory of [cluster] pki. Copy that file to the same place on every host, then reload its worker: systemctl reload xce-sandbox-worker.';
  static override examples = ['<%= config.bin %> pki revoke --node n1'];
  static override flags = {
    node: Flags.string({
      description: 'All certificates that were issued to this host.',
      helpValue: 'NAME',
      exactlyOne: ['node', 'serial'],
    }),
    serial: Flags.string({
      description: 'One certificate by its serial number.',
      helpValue: 'HEX',
      exactlyOne: ['node', 'serial'],
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(PkiRevoke);
    const { node, serial } = flags;
    const result = await revokeCertificates(flags.config, { node, serial }, (text) => this.tell(text));
    await this.show(flags, result, renderRevocation);
  }
}
