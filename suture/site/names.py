"""Common first names, last names and cities, as lower-case sets: one sign among others that a text names a person or a place.

From the public lists of the United States (Census surnames, Social Security first names, cities by population), the top
of each. A name that is not here is still found by its column's name or by its shape; see docs/deidentification.md for
what is missed.
"""

_FIRST = """
    james robert john michael david william richard joseph thomas christopher charles daniel matthew anthony mark donald
    steven andrew paul joshua kenneth kevin brian timothy ronald george jason edward jeffrey ryan jacob nicholas gary eric
    jonathan stephen larry justin scott brandon benjamin samuel gregory alexander patrick frank raymond jack dennis jerry
    tyler aaron jose adam nathan henry zachary douglas peter kyle noah ethan jeremy christian walter keith austin roger
    terry sean gerald carl dylan harold jordan jesse bryan lawrence arthur gabriel bruce logan billy joe alan juan elijah
    willie albert wayne randy mason vincent liam roy bobby caleb bradley russell lucas mary patricia jennifer linda
    elizabeth barbara susan jessica karen sarah lisa nancy sandra betty ashley emily kimberly margaret donna michelle
    carol amanda melissa deborah stephanie rebecca sharon laura cynthia dorothy amy kathleen angela shirley emma brenda
    pamela nicole anna samantha katherine christine debra rachel carolyn janet maria olivia heather helen catherine diane
    julie victoria joyce lauren kelly christina ruth joan virginia judith evelyn hannah andrea megan cheryl jacqueline
    madison teresa abigail sophia martha sara gloria janice kathryn ann isabella judy charlotte julia grace amber alice
    jean denise frances danielle marilyn natalie beverly diana brittany theresa kayla alexis doris lori tiffany luis carlos
    miguel pedro ana carmen rosa fatima mohammed muhammad ahmed ali omar hassan wei ming li yuki hiroshi priya raj anil
    sanjay ivan olga dmitri elena sofia giulia marco luca pierre claire hans klaus ingrid lars anders
"""

_LAST = """
    smith johnson williams brown jones garcia miller davis rodriguez martinez hernandez lopez gonzalez wilson anderson
    thomas taylor moore jackson martin lee perez thompson white harris sanchez clark ramirez lewis robinson walker young
    allen king wright scott torres nguyen hill flores green adams nelson baker hall rivera campbell mitchell carter
    roberts gomez phillips evans turner diaz parker cruz edwards collins reyes stewart morris morales murphy cook rogers
    gutierrez ortiz morgan cooper peterson bailey reed kelly howard ramos kim cox ward richardson watson brooks chavez wood
    james bennett gray mendoza ruiz hughes price alvarez castillo sanders patel myers long ross foster jimenez powell
    jenkins perry russell sullivan bell coleman butler henderson barnes fisher vasquez simmons romero jordan patterson
    alexander hamilton graham reynolds griffin wallace moreno west cole hayes bryant herrera gibson ellis tran medina
    aguilar stevens murray ford castro marshall owens harrison fernandez mcdonald woods washington kennedy wells vargas
    henry chen freeman webb tucker guzman burns crawford olson simpson porter hunter gordon mendez silva shaw snyder mason
    dixon munoz hunt hicks holmes palmer wagner black robertson boyd rose stone salazar fox warren mills meyer rice
    schmidt garza daniels ferguson nichols stephens soto weaver ryan gardner payne grant dunn kelley spencer hawkins wang
    singh khan kumar ivanov muller schneider rossi jensen hansen larsen o'brien murphy
"""

FIRST_NAMES, LAST_NAMES = frozenset(_FIRST.split()), frozenset(_LAST.split())

CITIES = frozenset(
    name.strip()
    for name in """
    new york,los angeles,chicago,houston,phoenix,philadelphia,san antonio,san diego,dallas,jacksonville,austin,fort worth,
    san jose,columbus,charlotte,indianapolis,san francisco,seattle,denver,oklahoma city,nashville,el paso,washington,
    las vegas,boston,detroit,portland,louisville,memphis,baltimore,milwaukee,albuquerque,tucson,fresno,sacramento,
    kansas city,mesa,atlanta,colorado springs,omaha,raleigh,virginia beach,long beach,miami,oakland,minneapolis,bakersfield,
    tulsa,tampa,arlington,wichita,aurora,new orleans,cleveland,honolulu,anaheim,henderson,orlando,lexington,stockton,
    riverside,corpus christi,irvine,cincinnati,santa ana,newark,st. paul,saint paul,pittsburgh,greensboro,durham,lincoln,
    jersey city,plano,anchorage,st. louis,saint louis,madison,chandler,gilbert,reno,buffalo,cambridge,somerville,worcester,
    springfield,lowell,brockton,quincy,lynn,salem,providence,hartford,new haven,stamford,bridgeport,manchester,nashua,
    burlington,albany,rochester,syracuse,yonkers,boise,spokane,tacoma,salt lake city,des moines,little rock,jackson,
    birmingham,montgomery,mobile,knoxville,chattanooga,richmond,norfolk,london,paris,berlin,madrid,rome,toronto,montreal
    """.replace("\n", "").split(",")
)
