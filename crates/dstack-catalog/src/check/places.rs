//! Where instance types must be on sale for a catalogue to be complete.

/// Regions of `m5.large`.
pub(super) const AWS_M5_LARGE: &str = "af-south-1 ap-east-1 ap-northeast-1 ap-northeast-2 ap-northeast-3 ap-south-1 ap-south-2 \
    ap-southeast-1 ap-southeast-2 ap-southeast-3 ap-southeast-4 ca-central-1 eu-central-1 eu-central-2 \
    eu-north-1 eu-south-1 eu-south-2 eu-west-1 eu-west-2 eu-west-3 il-central-1 me-central-1 me-south-1 \
    sa-east-1 us-east-1 us-east-2 us-gov-east-1 us-gov-west-1 us-west-1 us-west-2 us-west-2-lax-1";

/// Regions of `Standard_D2s_v3`.
pub(super) const AZURE_D2S_V3: &str = "australiacentral australiacentral2 australiaeast australiasoutheast brazilsouth brazilsoutheast \
    canadacentral canadaeast centralindia centralus eastasia eastus eastus2 francecentral francesouth \
    germanynorth germanywestcentral indonesiacentral israelcentral italynorth japaneast japanwest \
    jioindiacentral jioindiawest koreacentral koreasouth malaysiawest mexicocentral newzealandnorth \
    northcentralus northeurope norwayeast norwaywest polandcentral qatarcentral southafricanorth \
    southafricawest southcentralus southeastasia southindia spaincentral swedencentral swedensouth \
    switzerlandnorth switzerlandwest uaecentral uaenorth uksouth ukwest westcentralus westeurope \
    westindia westus westus2 westus3";

/// Zones of `e2-highcpu-2`: region, then the letters of its zones.
pub(super) const GCP_E2_HIGHCPU_2: &str = "asia-east1/abc asia-east2/abc asia-northeast1/abc asia-northeast2/abc asia-northeast3/abc \
    asia-south1/abc asia-south2/abc asia-southeast1/abc asia-southeast2/abc australia-southeast1/abc \
    australia-southeast2/abc europe-central2/abc europe-north1/abc europe-southwest1/abc \
    europe-west1/bcd europe-west10/abc europe-west12/abc europe-west2/abc europe-west3/abc \
    europe-west4/abc europe-west6/abc europe-west8/abc europe-west9/abc me-central1/abc me-central2/abc \
    me-west1/abc northamerica-northeast1/abc northamerica-northeast2/abc southamerica-east1/abc \
    southamerica-west1/abc us-central1/abcf us-east1/bcd us-east4/abc us-east5/abc us-south1/abc \
    us-west1/abc us-west2/abc us-west3/abc us-west4/abc";

/// Regions of Lambda.
pub(super) const LAMBDALABS: &str = "asia-northeast-1 asia-northeast-2 asia-south-1 australia-east-1 europe-central-1 me-west-1 us-east-1 \
    us-east-3 us-midwest-1 us-south-2 us-south-3 us-west-1 us-west-2 us-west-3";

/// Data centres and countries of RunPod, most of which are expected.
pub(super) const RUNPOD: &str =
    "CA CA-MTL-1 CA-MTL-2 CA-MTL-3 CZ EU-NL-1 EU-RO-1 EU-SE-1 EUR-IS-1 EUR-IS-2 FR US US-TX-3";
